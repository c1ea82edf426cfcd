# For tests of this one module.
from guard.audit_file import *
