# Written by typings/generate.py.
from sandbox.config import *
