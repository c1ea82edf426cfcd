# For tests of this one module.
from sandbox.host_cgroups import *
