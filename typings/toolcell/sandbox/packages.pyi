# For tests of this one module.
from sandbox.packages import *
