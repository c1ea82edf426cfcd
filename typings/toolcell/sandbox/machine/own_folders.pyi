# Written by typings/generate.py.
from sandbox.machine.own_folders import *
