# Written by typings/generate.py.
from host.cli.head_start import *
