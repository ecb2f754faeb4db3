"""Tests of attention, and the oracle they use."""
