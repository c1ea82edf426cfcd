# Written by typings/generate.py.
from sandbox.backends.launcher_setup import *
