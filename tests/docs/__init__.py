"""Tests of the documentation: its site, and that what it shows is what happens."""
