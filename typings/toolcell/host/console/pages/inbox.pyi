# Written by typings/generate.py.
from host.console.pages.inbox import *
