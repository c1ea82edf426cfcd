# Written by typings/generate.py.
from host.desk.audit_check import *
