# Written by typings/generate.py.
from host.console.routes import *
