# Type checkers only: toolcell.tools is the folder ./tools.
from tools import *
