"""Relays carry bytes of connections between a cell's loopback and the host, unread."""
