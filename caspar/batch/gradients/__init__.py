"""Gradients through the problems of a batch.

From checked arrays with the values after a solve, and a derivative by these: one problem of
`caspar.solver.gradients`, whose Hessian has a dense block for each problem of the batch. To
derivatives in the shapes that were passed.
"""
