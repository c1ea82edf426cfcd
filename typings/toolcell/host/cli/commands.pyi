# Written by typings/generate.py.
from host.cli.commands import *
