# Written by typings/generate.py.
from host.sandbox_state.sandbox import *
