# Written by typings/generate.py.
from core.text.overwritten import *
