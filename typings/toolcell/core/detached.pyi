# Written by typings/generate.py.
from core.detached import *
