# Written by typings/generate.py.
from core.addresses import *
