"""Dockerfiles of cells."""
