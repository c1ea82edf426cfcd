# Written by typings/generate.py.
from host.desk.limits import *
