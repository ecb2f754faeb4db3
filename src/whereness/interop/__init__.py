"""Interchange with other libraries: their configs read, and told in words and numbers."""
