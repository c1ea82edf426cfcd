# Written by typings/generate.py.
from flow.stores.reading import *
