"""The doors of the console: who comes in, by which way, and from where."""
