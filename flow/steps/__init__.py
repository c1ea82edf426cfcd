"""Steps: all their tasks run, then one commit (internal to toolcell.flow)."""
