# Written by typings/generate.py.
from sandbox.packages.uv import *
