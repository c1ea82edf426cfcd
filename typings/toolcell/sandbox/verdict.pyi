# For tests of this one module.
from sandbox.verdict import *
