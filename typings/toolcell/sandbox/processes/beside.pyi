# Written by typings/generate.py.
from sandbox.processes.beside import *
