# For tests of this one module.
from sandbox.backend import *
