# Written by typings/generate.py.
from host.sandbox_http.errors import *
