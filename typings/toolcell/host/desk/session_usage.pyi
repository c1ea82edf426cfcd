# Written by typings/generate.py.
from host.desk.session_usage import *
