# Type checkers only: toolcell.tools.builtin is the folder ./tools/builtin.
from tools.builtin import *
