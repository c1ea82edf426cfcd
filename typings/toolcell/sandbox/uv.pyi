# For tests of this one module.
from sandbox.uv import *
