# Written by typings/generate.py.
from sandbox.packages.layer_store import *
