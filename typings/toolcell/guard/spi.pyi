# Written by typings/generate.py.
from guard.spi import *
