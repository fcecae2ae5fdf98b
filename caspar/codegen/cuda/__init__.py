"""Kernels in CUDA C.

`kernel` puts a kernel together from its parts: `header`, `body` and `places`, and the text of each
operation in `ops`. Loops of several kernels are in `loop`, kernels that are written by hand in
`structure`.
"""
