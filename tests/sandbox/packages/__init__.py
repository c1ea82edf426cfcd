"""Tests of packages."""
