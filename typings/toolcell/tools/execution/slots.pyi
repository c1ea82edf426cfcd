# Written by typings/generate.py.
from tools.execution.slots import *
