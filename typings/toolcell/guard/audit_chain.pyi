# For tests of this one module.
from guard.audit_chain import *
