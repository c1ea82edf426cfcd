# Written by typings/generate.py.
from sandbox.backends.restricted import *
