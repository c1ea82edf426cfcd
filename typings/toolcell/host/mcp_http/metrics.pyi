# Written by typings/generate.py.
from host.mcp_http.metrics import *
