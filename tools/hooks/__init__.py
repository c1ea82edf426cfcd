"""What may be wrapped around a run."""
