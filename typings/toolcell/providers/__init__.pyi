# Written by typings/generate.py.
from providers import *
