# Written by typings/generate.py.
from core.lazy_face import *
