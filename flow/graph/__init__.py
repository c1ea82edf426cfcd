"""Nodes and the ways between them (internal to toolcell.flow)."""
