# Written by typings/generate.py.
from flow.state.patch import *
