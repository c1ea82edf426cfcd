# Written by typings/generate.py.
from cluster.membership.capacity import *
