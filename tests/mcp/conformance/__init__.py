"""The official conformance scenarios."""
