# For tests of this one module.
from host.mcp_shares import *
