# Written by typings/generate.py.
from core.text.charsets import *
