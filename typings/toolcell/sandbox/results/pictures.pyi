# Written by typings/generate.py.
from sandbox.results.pictures import *
