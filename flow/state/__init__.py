"""A state's fields, their reducers, and how they change (internal to toolcell.flow)."""
