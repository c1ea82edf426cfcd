"""Streams, signals, tables, exit codes."""
