# Written by typings/generate.py.
from core.text.strict_json import *
