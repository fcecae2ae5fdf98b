"""Many small independent problems at once: `caspar.BatchSolver`.

The Levenberg-Marquardt loop of a problem is one generated kernel, of which each thread runs one
problem. Input: factors and arrays whose leading axis is the problem. Output: a `BatchResult`.
`programs` and `policy_program` write what a problem computes, `kernel` the loop around it, `input`
reads users' arrays.
"""
