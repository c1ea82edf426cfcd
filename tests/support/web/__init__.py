"""Servers of HTTP that tests start."""
