# Written by typings/generate.py.
from cluster.wire.tls import *
