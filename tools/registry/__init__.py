"""The tools of a host, by name and version, and their visibility."""
