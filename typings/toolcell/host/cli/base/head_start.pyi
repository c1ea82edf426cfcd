# Written by typings/generate.py.
from host.cli.base.head_start import *
