"""Records and idempotency keys."""
