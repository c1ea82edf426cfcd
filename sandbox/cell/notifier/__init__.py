"""The process that answers some calls of programs, by what they really lead to."""
