# Written by typings/generate.py.
from flow.execution.writer import *
