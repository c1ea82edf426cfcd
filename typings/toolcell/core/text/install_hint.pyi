# Written by typings/generate.py.
from core.text.install_hint import *
