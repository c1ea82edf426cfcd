# Written by typings/generate.py.
from sandbox.cell.notebook.cells import *
