# Written by typings/generate.py.
from sandbox.cell.accounting.memory_watch import *
