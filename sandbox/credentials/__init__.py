"""Credentials that programs use and never have: placed in requests, out of answers."""
