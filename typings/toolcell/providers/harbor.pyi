# Written by typings/generate.py.
from providers.harbor import *
