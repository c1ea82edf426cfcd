"""The checks that checkpointers are held to (internal to toolcell.flow)."""
