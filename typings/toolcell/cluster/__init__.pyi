# Written by typings/generate.py.
from cluster import *
