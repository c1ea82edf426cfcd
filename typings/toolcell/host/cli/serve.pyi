# Written by typings/generate.py.
from host.cli.serve import *
