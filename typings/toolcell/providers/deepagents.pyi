# Written by typings/generate.py.
from providers.deepagents import *
