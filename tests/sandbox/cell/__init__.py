"""Tests of cell."""
