# Written by typings/generate.py.
from sandbox.machine import *
