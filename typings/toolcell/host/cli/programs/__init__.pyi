# Written by typings/generate.py.
from host.cli.programs import *
