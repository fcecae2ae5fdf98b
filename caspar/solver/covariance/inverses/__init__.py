"""Ways to invert the reduced system of a covariance.

`choice` takes one by size: singular values of the Jacobian, a dense matrix, the selected entries of
a sparse one, or columns by conjugate gradients. Each finds the free directions first, and returns a
`ReducedInverse` in which as many unknowns are pinned.
"""
