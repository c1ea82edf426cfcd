# Written by typings/generate.py.
from tools.mcp_client.http_bodies import *
