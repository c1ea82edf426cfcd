# Written by typings/generate.py.
from sandbox.network.stream import *
