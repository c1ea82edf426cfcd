"""Decides when a run gets a cell, and which one."""
