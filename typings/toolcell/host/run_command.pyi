# For tests of this one module.
from host.run_command import *
