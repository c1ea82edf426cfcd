"""Tools that come with toolcell; the risky ones run in cells."""

__all__ = []
