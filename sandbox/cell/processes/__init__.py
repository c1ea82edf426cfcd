"""Commands that run beside the programs of a session."""
