# Written by typings/generate.py.
from host.webhooks import *
