# For tests of this one module.
from sandbox.cell.egress_relay import *
