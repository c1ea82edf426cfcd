# Written by typings/generate.py.
from host.runtime.backup import *
