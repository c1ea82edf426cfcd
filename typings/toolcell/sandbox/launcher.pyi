# For tests of this one module.
from sandbox.launcher import *
