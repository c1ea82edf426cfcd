"""Commands about decisions, limits and who answers."""
