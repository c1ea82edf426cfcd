# Written by typings/generate.py.
from host.terminal.output import *
