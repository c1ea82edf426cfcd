"""The host's end of one cell: channel, run, files, calls, result."""
