# For tests of this one module.
from host.secret import *
