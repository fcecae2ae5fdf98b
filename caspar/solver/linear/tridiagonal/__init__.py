"""The block tridiagonal preconditioner: one or several chains of nodes, factorised.

`chain_structure` finds chains, `chain_space` has memory and launches. It preconditions; conjugate
gradients are in `linear_solvers`.
"""
