# Written by typings/generate.py.
from sandbox.cell.kernel.calls import *
