"""What nodes, flows and people say to each other (internal to toolcell.flow)."""
