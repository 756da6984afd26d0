"""Kernels of the library, written with the public language only."""
