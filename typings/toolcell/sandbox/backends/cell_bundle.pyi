# Written by typings/generate.py.
from sandbox.backends.cell_bundle import *
