"""Kernels and residuals as functions with derivatives, for libraries that differentiate.

Input: a `caspar.kernel` or a `caspar.factor`, and what it is called with. Output: a `Call`, which
runs on arrays and knows the call that derives it. `caspar.torch` and `caspar.jax` make functions of
their libraries of it; nothing here loads them.
"""
