"""Rotary encodings: queries and keys are turned by their position."""
