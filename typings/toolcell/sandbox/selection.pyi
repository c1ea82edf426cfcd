# For tests of this one module.
from sandbox.selection import *
