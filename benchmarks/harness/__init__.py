"""How a row is measured."""
