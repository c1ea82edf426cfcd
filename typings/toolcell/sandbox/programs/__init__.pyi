# Written by typings/generate.py.
from sandbox.programs import *
