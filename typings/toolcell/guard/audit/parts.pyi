# Written by typings/generate.py.
from guard.audit.parts import *
