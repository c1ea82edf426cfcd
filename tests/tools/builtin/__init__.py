"""Tests of builtin."""
