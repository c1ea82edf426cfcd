# Written by typings/generate.py.
from host.sandbox_api import *
