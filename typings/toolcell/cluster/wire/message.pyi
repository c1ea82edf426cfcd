# Written by typings/generate.py.
from cluster.wire.message import *
