# Written by typings/generate.py.
from sandbox.scheduling.fair_queue import *
