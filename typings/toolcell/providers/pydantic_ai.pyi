# Written by typings/generate.py.
from providers.pydantic_ai import *
