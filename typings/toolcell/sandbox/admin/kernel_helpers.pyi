# Written by typings/generate.py.
from sandbox.admin.kernel_helpers import *
