"""What a user gets back: values only."""
