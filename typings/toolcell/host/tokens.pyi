# For tests of this one module.
from host.tokens import *
