# Written by typings/generate.py.
from host.terminal import *
