# Written by typings/generate.py.
from providers.verifiers import *
