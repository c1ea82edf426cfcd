# For tests of this one module.
from sandbox.network import *
