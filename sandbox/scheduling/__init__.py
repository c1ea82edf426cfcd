"""Which run gets a cell, and when."""
