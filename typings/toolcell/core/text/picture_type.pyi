# Written by typings/generate.py.
from core.text.picture_type import *
