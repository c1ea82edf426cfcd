# For tests of this one module.
from sandbox.egress_stream import *
