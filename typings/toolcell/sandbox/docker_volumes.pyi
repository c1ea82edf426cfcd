# For tests of this one module.
from sandbox.docker_volumes import *
