"""Where threads are kept (internal to toolcell.flow)."""
