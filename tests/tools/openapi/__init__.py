"""Tests of openapi."""
