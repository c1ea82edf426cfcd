"""The base of all pages: who may see them, how they are protected, and drawn."""
