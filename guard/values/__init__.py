"""Value objects: decision, facts, amounts, clock."""
