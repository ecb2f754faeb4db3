"""Absolute encodings: a matrix Π that joins X. One encoding a file."""
