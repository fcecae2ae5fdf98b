"""Kernels of your own, called with arrays.

`caspar.kernel` makes a `Kernel` of a function; its first call with arrays compiles it, `bind`
prepares repeated calls. This package knows nothing of solvers.
"""
