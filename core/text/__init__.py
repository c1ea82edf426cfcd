"""JSON with one meaning, and how much of it there is (internal to toolcell)."""
