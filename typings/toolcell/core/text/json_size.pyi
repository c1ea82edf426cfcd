# Written by typings/generate.py.
from core.text.json_size import *
