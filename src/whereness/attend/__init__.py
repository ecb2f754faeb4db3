"""Attention itself: functional, layer, cache, and the implementations."""
