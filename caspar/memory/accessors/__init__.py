"""Access patterns: each is one class, with its text in CUDA C and in Python for Numba."""
