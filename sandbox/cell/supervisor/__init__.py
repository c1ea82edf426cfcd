"""Process 2 of 3: PID 1 of the cell, trusted by the host."""
