# Written by typings/generate.py.
from host.config.webhooks import *
