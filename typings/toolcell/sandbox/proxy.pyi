# For tests of this one module.
from sandbox.proxy import *
