# Written by typings/generate.py.
from core.gauges import *
