# Written by typings/generate.py.
from host.rest.server import *
