# Written by typings/generate.py.
from tools.builtin import *
