# Written by typings/generate.py.
from core.text import *
