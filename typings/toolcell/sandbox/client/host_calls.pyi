# Written by typings/generate.py.
from sandbox.client.host_calls import *
