# For tests of this one module.
from guard.store import *
