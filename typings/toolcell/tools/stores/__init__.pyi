# Written by typings/generate.py.
from tools.stores import *
