"""Tests of definition."""
