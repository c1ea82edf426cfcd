# For tests of this one module.
from host.policy_reload import *
