# Written by typings/generate.py.
from flow.stores.base import *
