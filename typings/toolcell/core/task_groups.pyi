# Written by typings/generate.py.
from core.task_groups import *
