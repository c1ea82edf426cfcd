# For tests of this one module.
from host.programs import *
