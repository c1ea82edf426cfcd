# For tests of this one module.
from sandbox.client_hello import *
