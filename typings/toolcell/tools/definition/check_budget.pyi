# Written by typings/generate.py.
from tools.definition.check_budget import *
