# Written by typings/generate.py.
from sandbox.config.host_rules import *
