# Written by typings/generate.py.
from flow.execution import *
