"""A host: its components, assembled and observed."""
