# Written by typings/generate.py.
from sandbox.scheduling import *
