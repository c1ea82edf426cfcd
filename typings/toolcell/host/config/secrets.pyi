# Written by typings/generate.py.
from host.config.secrets import *
