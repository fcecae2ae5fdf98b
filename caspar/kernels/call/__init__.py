"""A call of a kernel with arrays: arguments, operands, plan, results.

`plan` decides how each array is read and written, `call` checks, binds and launches. Measuring is
in `measure`.
"""
