# Written by typings/generate.py.
from sandbox.cell.workdir.emptying import *
