# For tests of this one module.
from host.json_rpc import *
