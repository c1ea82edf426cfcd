# Written by typings/generate.py.
from cluster.driver.runs import *
