"""Which tools there are, who sees them."""
