# Written by typings/generate.py.
from sandbox.network.look_ups import *
