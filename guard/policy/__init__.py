"""What people write: policies, rules, conditions, files."""
