# For tests of this one module.
from sandbox.call_server import *
