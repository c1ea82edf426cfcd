# Written by typings/generate.py.
from guard.admission import *
