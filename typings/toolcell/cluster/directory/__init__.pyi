# Written by typings/generate.py.
from cluster.directory import *
