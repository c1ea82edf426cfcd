# For tests of this one module.
from sandbox.fair_queue import *
