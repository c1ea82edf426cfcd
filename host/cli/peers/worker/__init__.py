"""Runs in a process for one contender, and often in an environment for it alone.

It is started as the package `worker`, by a Python that may lack toolcell. So imports
inside are relative, and beside the standard library each kind of sandbox imports what
it measures, and nothing else.
"""
