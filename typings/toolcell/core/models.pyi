# Written by typings/generate.py.
from core.models import *
