"""The command `flow`."""
