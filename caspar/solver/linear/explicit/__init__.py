"""The reduced system as a matrix, dense or sparse, factorised by a library.

`explicit_kernels` has the formulas of its kernels, `structure` its pattern, `matrix` its memory,
`system` the launches that fill it, `solvers` the order of a solve; `choice` says when it pays,
`explicit` is the method. The factorisation itself is the backend's.
"""
