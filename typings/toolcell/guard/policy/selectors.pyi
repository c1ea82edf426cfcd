# Written by typings/generate.py.
from guard.policy.selectors import *
