# Written by typings/generate.py.
from core.storage.forks import *
