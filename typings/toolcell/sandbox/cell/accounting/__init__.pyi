# Written by typings/generate.py.
from sandbox.cell.accounting import *
