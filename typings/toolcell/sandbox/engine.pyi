# For tests of this one module.
from sandbox.engine import *
