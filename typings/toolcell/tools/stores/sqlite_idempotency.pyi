# Written by typings/generate.py.
from tools.stores.sqlite_idempotency import *
