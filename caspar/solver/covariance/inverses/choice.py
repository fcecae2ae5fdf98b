"""How the inverse of a system is found: by its size and how full it is.

Cost tier: once for a covariance.
"""

from collections.abc import Callable, Sequence

from caspar.solver.covariance.inverses.dense import dense_inverse
from caspar.solver.covariance.inverses.iterative import iterative_inverse
from caspar.solver.covariance.inverses.reduced_inverse import ReducedInverse
from caspar.solver.covariance.inverses.singular_values import svd_inverse
from caspar.solver.covariance.inverses.sparse import sparse_inverse
from caspar.solver.covariance.jacobians import FactorJacobian
from caspar.solver.covariance.normal_matrix import NormalMatrix
from caspar.solver.limits import Limits


def choose_inverse(
    limits: Limits,
    jacobians: Sequence[FactorJacobian],
    assemble: Callable[[Sequence[str]], NormalMatrix],
    eliminated: Sequence[str],
) -> tuple[NormalMatrix, ReducedInverse]:
    """The system and its inverse.

    Args:
        limits: Sizes.
        jacobians: Of all factors.
        assemble: The system without some node types.
        eliminated: What is eliminated unless the problem is small.
    """
    whole = assemble(())
    num_rows = sum(int(one.residual.shape[0] * one.residual.shape[1]) for one in jacobians)
    if num_rows * whole.layout.num_unknowns**2 <= limits.max_svd_work:
        return whole, svd_inverse(whole)
    normal = assemble(eliminated) if len(eliminated) > 0 else whole
    size = normal.layout.num_unknowns
    if size <= limits.max_small_dense_covariance:
        return normal, dense_inverse(normal)
    if normal.num_eliminated_pairs <= limits.max_fill_pairs and size <= limits.max_sparse:
        pattern = normal.pattern()
        num_entries = pattern.num_blocks * normal.layout.width**2
        if num_entries < limits.full_share * 0.5 * size**2:
            return normal, sparse_inverse(normal, pattern)
    if size <= limits.max_dense_covariance:
        return normal, dense_inverse(normal)
    return normal, iterative_inverse(normal)
