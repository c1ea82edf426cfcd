# Written by typings/generate.py.
from flow.conformance.threads import *
