# Written by typings/generate.py.
from host.mcp_http.connections import *
