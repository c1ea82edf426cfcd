# For tests of this one module.
from sandbox.channel import *
