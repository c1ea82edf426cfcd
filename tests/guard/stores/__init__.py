"""Tests of stores."""
