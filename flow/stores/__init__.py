"""Stores of threads (internal to toolcell.flow)."""
