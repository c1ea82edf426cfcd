# Written by typings/generate.py.
from tools.execution.refused_arguments import *
