# Written by typings/generate.py.
from sandbox.packages.wheel_metadata import *
