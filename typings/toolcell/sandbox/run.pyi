# Written by typings/generate.py.
from sandbox.run import *
