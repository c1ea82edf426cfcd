# For tests of this one module.
from sandbox.look_ups import *
