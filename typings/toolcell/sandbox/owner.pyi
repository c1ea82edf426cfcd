# For tests of this one module.
from sandbox.owner import *
