# Written by typings/generate.py.
from sandbox.results.html_tables import *
