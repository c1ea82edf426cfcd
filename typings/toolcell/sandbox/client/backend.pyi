# Written by typings/generate.py.
from sandbox.client.backend import *
