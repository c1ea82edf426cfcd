# Written by typings/generate.py.
from cluster.wire.outbox import *
