# Written by typings/generate.py.
from sandbox.cell.wire.contract import *
