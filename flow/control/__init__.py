"""Threads are claimed, run and let go (internal to toolcell.flow)."""
