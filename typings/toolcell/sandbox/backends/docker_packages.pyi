# Written by typings/generate.py.
from sandbox.backends.docker_packages import *
