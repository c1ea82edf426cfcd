# Written by typings/generate.py.
from host.console.base.vouching import *
