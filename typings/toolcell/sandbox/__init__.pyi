# Type checkers only: toolcell.sandbox is the folder ./sandbox.
from sandbox import *
