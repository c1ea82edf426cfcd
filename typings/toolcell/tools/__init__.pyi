# Written by typings/generate.py.
from tools import *
