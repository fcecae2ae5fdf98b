"""The two-level preconditioner: clusters of nodes, and a coarse system of what they do as a whole.

`coarse_form` and `coarse_kernels` are the formulas of its kernels; `clusters` and
`coarse_structure` choose the clusters; `coarse_space` has the memory and the launches that form the
coarse system, `coarse_launches` those of an iteration. `two_level` is the method; conjugate
gradients are in `gradients`.
"""
