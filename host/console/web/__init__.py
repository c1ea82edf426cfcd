"""The base of all pages: how they are protected, declared, drawn and kept fresh."""
