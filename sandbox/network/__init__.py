"""A run's way out: proxy, rules applied, bytes carried."""
