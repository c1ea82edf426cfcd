# Written by typings/generate.py.
from cluster.node.visitor import *
