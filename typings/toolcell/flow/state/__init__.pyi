# Written by typings/generate.py.
from flow.state import *
