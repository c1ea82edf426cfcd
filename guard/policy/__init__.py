"""Policies as people write them: rules, conditions, limits, files."""
