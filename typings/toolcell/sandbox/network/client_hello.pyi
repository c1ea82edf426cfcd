# Written by typings/generate.py.
from sandbox.network.client_hello import *
