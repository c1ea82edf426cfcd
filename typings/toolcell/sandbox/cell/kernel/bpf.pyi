# Written by typings/generate.py.
from sandbox.cell.kernel.bpf import *
