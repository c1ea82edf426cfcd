# Written by typings/generate.py.
from sandbox.backends.shown_paths import *
