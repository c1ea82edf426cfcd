"""Tests of kernel."""
