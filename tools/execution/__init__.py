"""One call from request to result."""
