# Written by typings/generate.py.
from tools.spi import *
