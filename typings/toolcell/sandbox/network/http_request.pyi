# Written by typings/generate.py.
from sandbox.network.http_request import *
