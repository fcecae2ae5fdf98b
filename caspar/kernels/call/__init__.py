"""A call of a kernel with arrays: arguments, operands, plan, results.

`plan` decides how each array is read and written, `call` checks, `calls` launches, and repeats a
call that has the signature of an earlier one. Measuring is in `kernels.profile`.
"""
