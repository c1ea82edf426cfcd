# Written by typings/generate.py.
from guard.approvals import *
