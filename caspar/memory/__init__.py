"""Arrays as kernels see them: access kinds, blocked layout, what a kernel is.

`access` and `patterns` say how an argument is read and written, `layout` where its scalars are,
`kernel` what a `KernelSpec` holds. It does not know symbols or solvers.
"""
