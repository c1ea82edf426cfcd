# Written by typings/generate.py.
from core.egress import *
