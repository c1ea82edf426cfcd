# Written by typings/generate.py.
from cluster.wire.link import *
