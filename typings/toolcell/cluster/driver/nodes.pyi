# Written by typings/generate.py.
from cluster.driver.nodes import *
