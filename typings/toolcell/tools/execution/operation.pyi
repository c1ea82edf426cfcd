# Written by typings/generate.py.
from tools.execution.operation import *
