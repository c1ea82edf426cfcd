# Written by typings/generate.py.
from cluster.spi import *
