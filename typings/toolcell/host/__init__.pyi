# Type checkers only: toolcell.host is the folder ./host.
from host import *
