"""Memory of a solve: the order of factors and nodes, one arena, what is where.

`planning` makes a `Plan` of a problem, `regions` says which arrays share bytes, `kernel_library`
has the compiled kernels. Nothing runs here.
"""
