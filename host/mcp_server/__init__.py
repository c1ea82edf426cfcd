"""Serving MCP clients: calls, callers, answers, and stdio."""
