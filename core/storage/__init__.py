"""State that is safe to share between processes and forks (internal to toolcell)."""
