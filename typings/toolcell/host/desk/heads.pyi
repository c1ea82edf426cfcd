# Written by typings/generate.py.
from host.desk.heads import *
