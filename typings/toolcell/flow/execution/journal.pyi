# Written by typings/generate.py.
from flow.execution.journal import *
