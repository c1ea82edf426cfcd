# Written by typings/generate.py.
from host.rest.operations import *
