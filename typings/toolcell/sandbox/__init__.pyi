# Written by typings/generate.py.
from sandbox import *
