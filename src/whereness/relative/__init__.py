"""Relative encodings: the attention matrix is changed by offset. One encoding a file."""
