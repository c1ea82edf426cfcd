"""Tests of the documentation as a site."""
