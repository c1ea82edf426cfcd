"""The inbox: what waits for people, and their answers."""
