"""Makes the program that a cell is asked to run."""
