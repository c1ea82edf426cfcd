"""Serves the tools of a host as plain HTTP and JSON, with an OpenAPI document."""
