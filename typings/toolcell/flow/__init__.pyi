# Written by typings/generate.py.
from flow import *
