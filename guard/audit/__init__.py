"""The log, its chain, redaction."""
