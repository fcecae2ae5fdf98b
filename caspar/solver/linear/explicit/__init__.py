"""The reduced system as a matrix, dense or sparse, factorised by a library.

`explicit_kernels` and `pair_kernels` are the formulas of its kernels, `structure` is its pattern,
`matrix` its memory, `system` the launches that fill it, `solvers` the order of a solve. `choice`
says when it pays, `explicit` is the method. The factorisation itself is the backend's.
"""
