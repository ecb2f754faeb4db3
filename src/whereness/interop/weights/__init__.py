"""Weights between the two pairings of rotary channels."""
