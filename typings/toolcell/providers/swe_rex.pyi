# Written by typings/generate.py.
from providers.swe_rex import *
