"""A served console, and browsers that use it."""
