# Written by typings/generate.py.
from sandbox.cell.supervisor.output_buffer import *
