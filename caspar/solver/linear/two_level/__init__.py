"""The two-level preconditioner: clusters of nodes, and a coarse system of what they do as a whole.

`clusters` and `coarse_structure` choose them, `coarse_space` has memory and launches. It
preconditions; conjugate gradients are in `linear_solvers`.
"""
