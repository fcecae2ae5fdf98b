"""From a residual function to kernels: markers, tracing, derivatives.

The only package that knows SymPy and SymForce.
"""
