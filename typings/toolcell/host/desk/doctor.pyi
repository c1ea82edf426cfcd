# Written by typings/generate.py.
from host.desk.doctor import *
