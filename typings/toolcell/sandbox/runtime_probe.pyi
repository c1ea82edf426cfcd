# For tests of this one module.
from sandbox.runtime_probe import *
