# Written by typings/generate.py.
from guard.audit.file import *
