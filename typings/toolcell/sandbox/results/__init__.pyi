# Written by typings/generate.py.
from sandbox.results import *
