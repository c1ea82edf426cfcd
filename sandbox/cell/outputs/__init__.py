"""Outputs of a program, as in a notebook; loaded when a program first needs them."""
