# Written by typings/generate.py.
from sandbox.client.workdir import *
