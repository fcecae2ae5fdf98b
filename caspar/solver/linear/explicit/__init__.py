"""The reduced system as a matrix, dense or sparse, factorised by a library.

`explicit_kernels` are the formulas of its kernels, `structure` is its pattern, `system` its memory
and the launches that fill it, `solvers` the order of a solve. `explicit` is the method, and says
when it pays. The factorisation itself is the backend's.
"""
