"""Tests of the MCP client and server."""
