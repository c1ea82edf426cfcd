# Written by typings/generate.py.
from sandbox.client.handshake import *
