# Written by typings/generate.py.
from guard.admission.compiled_policy import *
