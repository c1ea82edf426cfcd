# Written by typings/generate.py.
from tools.definition.json_schema import *
