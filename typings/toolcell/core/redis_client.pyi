# Written by typings/generate.py.
from core.redis_client import *
