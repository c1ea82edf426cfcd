# Written by typings/generate.py.
from core.text.canonical_json import *
