# Written by typings/generate.py.
from cluster.wire.parts import *
