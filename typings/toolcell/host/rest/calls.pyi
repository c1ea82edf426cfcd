# Written by typings/generate.py.
from host.rest.calls import *
