# For tests of this one module.
from sandbox.function_source import *
