"""Factors: a residual function with marked arguments, traced and derived.

`trace` runs the function on symbols and gives a `TracedFactor`; `jacobian` and `retraction` give
its derivatives and how nodes move. Which kernels a solver makes of it is decided in `equations`.
"""
