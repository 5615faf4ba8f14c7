"""Loops that numba compiles. The shape checker cannot decorate them, so they live apart from their callers."""
