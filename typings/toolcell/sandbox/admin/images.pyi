# Written by typings/generate.py.
from sandbox.admin.images import *
