# Written by typings/generate.py.
from host.sandbox_acts.table import *
