# For tests of this one module.
from sandbox.cell.values import *
