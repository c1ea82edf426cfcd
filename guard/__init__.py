"""Decides who may do what, and how much of it."""

__all__ = []
