# For tests of this one module.
from host.progress import *
