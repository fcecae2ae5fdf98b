"""The least step after which linearised constraints hold exactly, for solves that end by the loop.

Input: constraints at the end of the loop, off by what its tolerance allows. Output: a step of the
nodes that they touch. At a minimum it changes the cost by multipliers times distances. Cost tier:
SciPy on the host, once for a solve.
"""

from collections.abc import Mapping

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import lsqr

from caspar.frontend.factors.factor import ConstraintKind
from caspar.solver.constraints.violations import Floats, Linearised
from caspar.solver.normal.blocks import Unknowns

ROUNDING = 1e-15
"""Relative residual at which the linear solve ends."""


def restoring_step(
    found: Mapping[str, Linearised],
    multipliers: Mapping[str, Floats],
    curvatures: Mapping[str, Floats],
) -> dict[str, Floats]:
    """(n, tangent_dim) by node type; the shortest one in variables with a curvature of 1.

    Args:
        found: Constraints, without derivatives by what is held.
        multipliers: By constraint; inequalities hold with equality where they are not 0.
        curvatures: By node type (n, tangent_dim) the diagonal of J^T J of all factors; 0 counts as
            the mean of the type.
    """
    names = dict.fromkeys(node.node for one in found.values() for node in one.nodes)
    unknowns = Unknowns.of({name: curvatures[name].shape for name in names})
    weights = {}
    for name in names:
        own = curvatures[name]
        usual = own[own > 0.0].mean() if (own > 0.0).any() else 1.0
        weights[name] = 1.0 / np.sqrt(np.where(own > 0.0, own, usual))
    weight = unknowns.joined(np, weights)
    rows, columns, entries, wanted, num_rows = [], [], [], [], 0
    for name, one in found.items():
        is_active = one.violation > 0.0
        if one.kind is ConstraintKind.POSITIVE:
            is_active |= multipliers[name] > 0.0
        instance, entry = np.nonzero(is_active)
        number = num_rows + np.arange(len(instance))[:, None]
        num_rows += len(instance)
        wanted.append(-one.rows[instance, entry])
        for node in one.nodes:
            every = np.arange(node.entries.shape[2])
            column = unknowns.numbers(np, node.node, node.index[instance], every)
            value = node.entries[instance, entry] * weight[column]
            rows.append(np.broadcast_to(number, column.shape).ravel())
            columns.append(column.ravel())
            entries.append(value.ravel())
    places = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(entries), places), (num_rows, unknowns.size)).tocsr()
    lengths = np.sqrt((matrix**2).sum(axis=1))
    scale = 1.0 / np.where(lengths > 0.0, lengths, 1.0)
    scaled = matrix.multiply(scale[:, None]).tocsr()
    step = lsqr(scaled, scale * np.concatenate(wanted), atol=ROUNDING, btol=ROUNDING)[0]
    return unknowns.split(weight * step)
