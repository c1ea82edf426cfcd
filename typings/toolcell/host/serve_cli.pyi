# For tests of this one module.
from host.serve_cli import *
