"""Runs outside of sessions: programs, their requests, and batches of them."""
