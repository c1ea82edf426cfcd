# Written by typings/generate.py.
from core.storage.process_lease import *
