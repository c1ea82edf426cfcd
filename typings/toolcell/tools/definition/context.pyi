# Written by typings/generate.py.
from tools.definition.context import *
