# Written by typings/generate.py.
from core.http_exchange import *
