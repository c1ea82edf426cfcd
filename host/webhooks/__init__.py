"""Signed messages to the URLs of the configuration."""
