"""Facts about texts and bytes from outside, and JSON with one meaning (internal)."""
