# Written by typings/generate.py.
from sandbox.client.cell import *
