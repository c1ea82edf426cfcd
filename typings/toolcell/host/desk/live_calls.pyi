# Written by typings/generate.py.
from host.desk.live_calls import *
