# Written by typings/generate.py.
from cluster.wire.sockets import *
