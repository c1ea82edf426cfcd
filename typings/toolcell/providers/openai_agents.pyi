# Written by typings/generate.py.
from providers.openai_agents import *
