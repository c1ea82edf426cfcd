# Written by typings/generate.py.
from guard import *
