# Written by typings/generate.py.
from host.mcp_http.agent_shares import *
