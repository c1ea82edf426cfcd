# Written by typings/generate.py.
from sandbox.backends.namespaces import *
