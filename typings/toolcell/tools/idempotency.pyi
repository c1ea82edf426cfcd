# For tests of this one module.
from tools.idempotency import *
