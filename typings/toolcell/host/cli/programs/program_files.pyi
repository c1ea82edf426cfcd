# Written by typings/generate.py.
from host.cli.programs.program_files import *
