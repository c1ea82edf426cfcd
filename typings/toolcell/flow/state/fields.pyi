# Written by typings/generate.py.
from flow.state.fields import *
