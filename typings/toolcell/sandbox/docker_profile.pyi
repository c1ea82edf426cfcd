# For tests of this one module.
from sandbox.docker_profile import *
