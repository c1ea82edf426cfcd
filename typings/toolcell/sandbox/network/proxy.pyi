# Written by typings/generate.py.
from sandbox.network.proxy import *
