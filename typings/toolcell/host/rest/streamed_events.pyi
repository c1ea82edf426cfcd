# Written by typings/generate.py.
from host.rest.streamed_events import *
