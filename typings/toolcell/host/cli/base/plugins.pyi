# Written by typings/generate.py.
from host.cli.base.plugins import *
