"""The pages: a file for each, with what it shows and the acts on it."""
