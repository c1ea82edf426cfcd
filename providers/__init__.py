"""Adapters that let other frameworks run their sandboxes in toolcell's cells."""
