# Written by typings/generate.py.
from sandbox.backends.docker_volumes import *
