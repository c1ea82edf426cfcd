"""Requests and answers of the sandbox API: bodies, envelopes, errors, tokens."""
