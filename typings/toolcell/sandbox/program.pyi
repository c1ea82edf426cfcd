# For tests of this one module.
from sandbox.program import *
