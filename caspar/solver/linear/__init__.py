"""Linear solvers: conjugate gradients with preconditioners, and matrices that are factorised.

`method` says what a linear method is, `methods` lists all of them and takes one for a system. Those
with more than a list of launches have a folder each, from the formulas of their kernels to their
launches. They do not know Levenberg-Marquardt.
"""
