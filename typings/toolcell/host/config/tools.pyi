# Written by typings/generate.py.
from host.config.tools import *
