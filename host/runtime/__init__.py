"""A host: its parts, wired and observed."""
