# Written by typings/generate.py.
from flow.stores.records import *
