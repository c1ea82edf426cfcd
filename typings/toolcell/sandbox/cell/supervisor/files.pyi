# Written by typings/generate.py.
from sandbox.cell.supervisor.files import *
