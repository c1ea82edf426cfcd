# Type checkers only: toolcell.guard is the folder ./guard.
from guard import *
