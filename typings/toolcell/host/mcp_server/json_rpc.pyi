# Written by typings/generate.py.
from host.mcp_server.json_rpc import *
