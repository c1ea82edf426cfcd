# For tests of this one module.
from sandbox.pool import *
