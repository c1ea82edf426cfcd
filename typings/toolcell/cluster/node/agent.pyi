# Written by typings/generate.py.
from cluster.node.agent import *
