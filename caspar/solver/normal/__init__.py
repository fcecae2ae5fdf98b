"""The normal matrix of a problem: its unknowns, its blocks, and the matrix in float64.

`blocks` numbers unknowns and lists the blocks of two nodes that are not zero; direct solvers,
covariances and gradients all begin with it. A solve then fills blocks by kernels, once an
iteration (`linear.explicit`). Covariances and gradients ask once, at given values, and fill them in
float64 by array code: `instance_kernels` evaluate factors, `matrix` eliminates and sums.
"""
