"""Measures rows."""
