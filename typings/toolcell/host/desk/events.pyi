# Written by typings/generate.py.
from host.desk.events import *
