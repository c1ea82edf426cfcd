"""Tests of code."""
