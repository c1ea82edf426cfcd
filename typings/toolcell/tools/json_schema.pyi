# For tests of this one module.
from tools.json_schema import *
