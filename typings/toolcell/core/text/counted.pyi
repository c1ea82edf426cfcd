# Written by typings/generate.py.
from core.text.counted import *
