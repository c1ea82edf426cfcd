"""The rows: what is measured, against what."""
