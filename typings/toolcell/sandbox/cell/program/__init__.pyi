# Written by typings/generate.py.
from sandbox.cell.program import *
