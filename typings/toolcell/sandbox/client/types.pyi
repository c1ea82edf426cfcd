# Written by typings/generate.py.
from sandbox.client.types import *
