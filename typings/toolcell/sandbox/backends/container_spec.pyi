# Written by typings/generate.py.
from sandbox.backends.container_spec import *
