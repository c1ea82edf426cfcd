# Written by typings/generate.py.
from tools.definition import *
