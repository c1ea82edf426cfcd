# Written by typings/generate.py.
from sandbox.scheduling.used_cells import *
