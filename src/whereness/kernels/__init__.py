"""Compiled and GPU kernels behind one interface each, and the plain torch they must equal."""
