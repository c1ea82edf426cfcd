# For tests of this one module.
from sandbox.subprocess_backend import *
