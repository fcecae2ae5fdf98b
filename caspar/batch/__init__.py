"""Many small independent problems at once: `caspar.BatchSolver`.

The Levenberg-Marquardt loop of a problem is one generated kernel, of which each thread runs one
problem; `generate` writes it. Input: factors and arrays whose leading axis is the problem, which
`input` and `arrays` read. Output: a `BatchResult`, which `run` makes.
"""
