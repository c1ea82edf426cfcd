# Written by typings/generate.py.
from sandbox.cell.launcher import *
