# Written by typings/generate.py.
from tools.openapi.document import *
