"""Hooks around the run of a tool."""
