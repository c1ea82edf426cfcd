# Written by typings/generate.py.
from providers.thread_session import *
