# Written by typings/generate.py.
from host.config.sandbox_api import *
