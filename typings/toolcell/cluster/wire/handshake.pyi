# Written by typings/generate.py.
from cluster.wire.handshake import *
