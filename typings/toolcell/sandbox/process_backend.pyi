# For tests of this one module.
from sandbox.process_backend import *
