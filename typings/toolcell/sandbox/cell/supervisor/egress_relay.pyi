# Written by typings/generate.py.
from sandbox.cell.supervisor.egress_relay import *
