# Written by typings/generate.py.
from sandbox.cell.folder import *
