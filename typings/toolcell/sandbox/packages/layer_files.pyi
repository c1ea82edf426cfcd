# Written by typings/generate.py.
from sandbox.packages.layer_files import *
