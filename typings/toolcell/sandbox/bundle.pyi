# For tests of this one module.
from sandbox.bundle import *
