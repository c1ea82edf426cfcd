# Written by typings/generate.py.
from host.cli.machine import *
