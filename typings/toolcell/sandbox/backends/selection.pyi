# Written by typings/generate.py.
from sandbox.backends.selection import *
