"""Commands that run in the cell of a session, seen from the host."""
