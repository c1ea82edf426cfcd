# Written by typings/generate.py.
from host.rest.bodies import *
