# Written by typings/generate.py.
from host.desk.output import *
