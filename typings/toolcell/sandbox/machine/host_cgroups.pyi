# Written by typings/generate.py.
from sandbox.machine.host_cgroups import *
