"""Turn residual functions into expressions: markers, tracing, derivatives.

It is the only package that knows SymPy and SymForce. It does not know how an expression is
scheduled, and knows no arrays.
"""
