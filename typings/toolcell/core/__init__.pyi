# Written by typings/generate.py.
from core import *
