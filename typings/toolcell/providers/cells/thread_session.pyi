# Written by typings/generate.py.
from providers.cells.thread_session import *
