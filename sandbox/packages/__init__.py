"""Packages for programs: resolved, built, stored."""
