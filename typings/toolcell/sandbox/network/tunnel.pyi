# Written by typings/generate.py.
from sandbox.network.tunnel import *
