# Written by typings/generate.py.
from tools.openapi.requests import *
