# Written by typings/generate.py.
from sandbox.packages.source_builder import *
