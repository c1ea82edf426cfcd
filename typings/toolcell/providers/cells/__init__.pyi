# Written by typings/generate.py.
from providers.cells import *
