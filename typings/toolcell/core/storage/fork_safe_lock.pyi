# Written by typings/generate.py.
from core.storage.fork_safe_lock import *
