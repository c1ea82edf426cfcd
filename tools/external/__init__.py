"""The common parts of tools that other programs define."""
