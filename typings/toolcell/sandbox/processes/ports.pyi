# Written by typings/generate.py.
from sandbox.processes.ports import *
