# Written by typings/generate.py.
from core.storage.sqlite import *
