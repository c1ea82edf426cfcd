# Written by typings/generate.py.
from sandbox.scheduling.pool import *
