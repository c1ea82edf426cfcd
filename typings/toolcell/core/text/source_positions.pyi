# Written by typings/generate.py.
from core.text.source_positions import *
