# Written by typings/generate.py.
from guard.values import *
