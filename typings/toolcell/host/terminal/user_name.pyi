# Written by typings/generate.py.
from host.terminal.user_name import *
