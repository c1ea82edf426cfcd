# Written by typings/generate.py.
from host.console.base.rights import *
