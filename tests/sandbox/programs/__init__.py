"""Tests of programs."""
