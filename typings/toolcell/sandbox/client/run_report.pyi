# Written by typings/generate.py.
from sandbox.client.run_report import *
