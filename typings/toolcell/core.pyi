# Type checkers only: toolcell.core is the folder ./core.
from core import *
