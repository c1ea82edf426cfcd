# Written by typings/generate.py.
from host.rest.approvals import *
