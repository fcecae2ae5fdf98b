"""From a residual function to expressions: markers, tracing, derivatives.

It is the only package that knows SymPy and SymForce. It does not know how an expression is
scheduled, nor what arrays are.
"""
