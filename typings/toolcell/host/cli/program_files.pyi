# Written by typings/generate.py.
from host.cli.program_files import *
