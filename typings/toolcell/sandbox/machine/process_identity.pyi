# Written by typings/generate.py.
from sandbox.machine.process_identity import *
