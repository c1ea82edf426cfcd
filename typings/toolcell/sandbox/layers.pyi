# For tests of this one module.
from sandbox.layers import *
