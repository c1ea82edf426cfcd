"""Serves sandboxes to the SDKs of E2B, by its API."""
