# Written by typings/generate.py.
from guard.stores import *
