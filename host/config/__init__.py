"""Toolcell.toml as models."""
