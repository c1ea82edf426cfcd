# Written by typings/generate.py.
from sandbox.backend_api import *
