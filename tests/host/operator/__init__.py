"""Tests of the views and acts of people who run a host."""
