"""Serving MCP over HTTP: connections, tokens, shares of agents."""
