"""Tests of terminals."""
