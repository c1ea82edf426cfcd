# For tests of this one module.
from host.cli import *
