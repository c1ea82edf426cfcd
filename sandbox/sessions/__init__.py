"""Sessions: several runs in one cell, with state, files, commands and forks."""
