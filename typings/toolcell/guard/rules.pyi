# For tests of this one module.
from guard.rules import *
