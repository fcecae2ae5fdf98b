"""Kernels of your own, called with arrays; and the arrays they work on fastest."""
