# Written by typings/generate.py.
from core.text.printable import *
