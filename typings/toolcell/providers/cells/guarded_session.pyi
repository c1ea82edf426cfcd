# Written by typings/generate.py.
from providers.cells.guarded_session import *
