"""Tests of guard."""
