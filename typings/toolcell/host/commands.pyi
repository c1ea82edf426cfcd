# For tests of this one module.
from host.commands import *
