"""Commands that run programs."""
