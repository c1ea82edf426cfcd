# Written by typings/generate.py.
from cluster.directory.records import *
