# For tests of this one module.
from sandbox.docker_hosts import *
