# Written by typings/generate.py.
from guard.audit.locked_file import *
