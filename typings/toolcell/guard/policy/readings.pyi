# Written by typings/generate.py.
from guard.policy.readings import *
