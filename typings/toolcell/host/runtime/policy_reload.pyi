# Written by typings/generate.py.
from host.runtime.policy_reload import *
