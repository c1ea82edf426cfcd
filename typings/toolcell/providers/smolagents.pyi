# Written by typings/generate.py.
from providers.smolagents import *
