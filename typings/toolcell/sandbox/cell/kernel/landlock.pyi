# Written by typings/generate.py.
from sandbox.cell.kernel.landlock import *
