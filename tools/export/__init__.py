"""Tools in the shapes of providers and of Python."""
