# Written by typings/generate.py.
from host.mcp_http.listening import *
