# Written by typings/generate.py.
from providers.dspy import *
