"""A session behind a guard, as every provider uses it."""
