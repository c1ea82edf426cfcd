# Written by typings/generate.py.
from host.console.base.people_file import *
