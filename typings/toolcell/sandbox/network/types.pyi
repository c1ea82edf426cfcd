# Written by typings/generate.py.
from sandbox.network.types import *
