# Written by typings/generate.py.
from sandbox.cell.program.values import *
