# Written by typings/generate.py.
from host.terminal.progress import *
