# Written by typings/generate.py.
from cluster.wire.folders import *
