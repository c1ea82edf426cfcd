# Written by typings/generate.py.
from cluster.node.health import *
