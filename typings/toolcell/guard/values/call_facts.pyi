# Written by typings/generate.py.
from guard.values.call_facts import *
