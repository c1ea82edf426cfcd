# Written by typings/generate.py.
from host.mcp_server.caller import *
