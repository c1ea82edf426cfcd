# Written by typings/generate.py.
from flow.stores.tables import *
