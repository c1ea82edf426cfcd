# Written by typings/generate.py.
from host.cli.serving.console import *
