# Written by typings/generate.py.
from sandbox.spi import *
