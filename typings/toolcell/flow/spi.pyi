# Written by typings/generate.py.
from flow.spi import *
