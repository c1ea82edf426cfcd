# Written by typings/generate.py.
from sandbox.backends.limit_probe import *
