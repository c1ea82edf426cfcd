# Written by typings/generate.py.
from host.terminal.pictures import *
