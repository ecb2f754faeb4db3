"""Interchange with other libraries: configs, checkpoints, weights."""
