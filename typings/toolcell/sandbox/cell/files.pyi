# For tests of this one module.
from sandbox.cell.files import *
