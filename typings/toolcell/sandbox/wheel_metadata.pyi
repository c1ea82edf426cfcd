# For tests of this one module.
from sandbox.wheel_metadata import *
