# Written by typings/generate.py.
from cluster.driver.session import *
