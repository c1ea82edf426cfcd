"""Commands that set up and serve a host."""
