# Written by typings/generate.py.
from sandbox.client.channel import *
