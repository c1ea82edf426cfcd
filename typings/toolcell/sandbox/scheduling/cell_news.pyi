# Written by typings/generate.py.
from sandbox.scheduling.cell_news import *
