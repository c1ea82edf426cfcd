# For tests of this one module.
from sandbox.janitor import *
