"""Serves MCP over HTTP: connections, tokens, and fair shares for agents."""
