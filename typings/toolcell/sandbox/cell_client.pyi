# For tests of this one module.
from sandbox.cell_client import *
