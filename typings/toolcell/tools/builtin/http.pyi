# For tests of this one module.
from tools.builtin.http import *
