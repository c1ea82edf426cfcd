"""Asking people, durably."""
