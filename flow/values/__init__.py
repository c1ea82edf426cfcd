"""Values between nodes, flows and people (internal to toolcell.flow)."""
