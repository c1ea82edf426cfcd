# Written by typings/generate.py.
from guard.approvals.approver_view import *
