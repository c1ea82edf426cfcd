# Written by typings/generate.py.
from providers.guarded_session import *
