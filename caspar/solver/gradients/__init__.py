"""Gradients through a solve, by the implicit function theorem.

From the result of a solve and the derivative of a loss function by its values: the derivatives by
everything that the solve was given. Kernels of each factor write second derivatives and products;
sums over instances, and the linear system, are array code in float64.
"""
