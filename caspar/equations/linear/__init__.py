"""Kernels of linear solvers and preconditioners beside those that every solver has.

They form blocks of the matrix, and the coarse systems of the preconditioners. How a solver binds
and runs them is in `solver.linear`.
"""
