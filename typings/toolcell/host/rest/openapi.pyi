# Written by typings/generate.py.
from host.rest.openapi import *
