"""The linear system of a gradient: H z = b, with H by a sparse factorisation on the host.

H is scaled to a diagonal of ones, so that units do not matter. What is held, and what no residual
depends on, is a row of the identity. A singular H is damped: without a damping z would be infinite
or NaN. Cost tier: the analysis once for a structure, the rest once for a gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.solver.gradients.pattern import Integers, Unknowns, pattern_of

Floats = NDArray[np.float64]

SINGULAR_PIVOT = 1e-12
"""Pivot of the scaled H up to which it counts as singular; entries are known to about 1e-15."""

DAMPING = 1e-8
"""What is added to the diagonal of a singular H, in units of its scaled diagonal."""

REFINEMENTS = 2
"""Corrections by the residual of a system that is damped, or not positive definite."""

NOT_DEFINITE = (
    "The Hessian is not positive definite: these values are no minimum, or have not converged. "
    "Solve with tighter tolerances."
)


@dataclass(frozen=True)
class Solution:
    """Of H z = b, by node type, on the device.

    Attributes:
        z: (n, tangent_dim); 0 for what stays.
        stays: (n, tangent_dim) true for what is held, and for what no residual depends on.
        damping: What was added to the scaled diagonal; 0: nothing.
        remarks: What is to be said of H.
        is_partial: Whether parts of H are not finite, of which z is 0.
    """

    z: Mapping[str, Array]
    stays: Mapping[str, Array]
    damping: float
    remarks: tuple[str, ...]
    is_partial: bool = False


class HessianSystem(Protocol):
    """Systems of one structure."""

    def solve(
        self, parts: Sequence[Array], rhs: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> Solution | None:
        """Solve for one right-hand side; None: an entry of H is not finite.

        Args:
            parts: For each factor (m, entries of an instance): see `hessian_kernel`.
            rhs: By node type (n, tangent_dim) b, on the device.
            moving: By node type of which something is held (n, tangent_dim), 0 for that.
        """


class SparseSystem:
    """Systems of all unknowns of a problem.

    Args:
        backend: Where parts and right-hand sides are.
        unknowns: Of the node types.
        instances: For each factor (m, n), the unknowns of each instance.
    """

    def __init__(self, backend: Backend, unknowns: Unknowns, instances: Sequence[Integers]) -> None:
        self._backend = backend
        self._unknowns = unknowns
        self._pattern = pattern = pattern_of(unknowns.size, instances)
        self._diagonal = pattern.diagonal
        self._places = [backend.upload(places.ravel()) for places in pattern.places]
        self._doubled = [
            None if len(instance) == 0 else (backend.upload(instance), backend.upload(entry))
            for instance, entry in pattern.doubled
        ]
        self._factorization = QdldlFactorization(pattern.indptr, pattern.indices, pattern.size)

    def solve(
        self, parts: Sequence[Array], rhs: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> Solution | None:
        """See `HessianSystem`."""
        backend, unknowns = self._backend, self._unknowns
        entries = self._entries(parts)
        if not np.isfinite(entries).all():
            return None
        scale = self._scales(entries, unknowns.moves(moving))
        pattern, diagonal = self._pattern, self._diagonal
        values = entries * scale[pattern.rows] * scale[pattern.indices]
        values[diagonal] += scale == 0.0
        on_host = {name: backend.to_host(rhs[name]) for name in unknowns.shapes}
        scaled = unknowns.joined(on_host) * scale
        damping, pivots = 0.0, self._factorized(values)
        while not np.abs(pivots).min(initial=np.inf) > SINGULAR_PIVOT and damping < 1.0:
            damping = DAMPING if damping == 0.0 else 100.0 * damping
            damped = values.copy()
            damped[diagonal] += damping
            pivots = self._factorized(damped)
        is_definite = bool(pivots.min(initial=1.0) > 0.0)
        solution: Floats = self._factorization.solved(scaled)
        if damping > 0.0 or not is_definite:
            solution = self._refined(values, scaled, solution)
        remarks = () if damping == 0.0 else (singular_text(damping),)
        return Solution(
            unknowns.split(backend.upload(solution * scale)),
            unknowns.split(backend.upload(scale == 0.0)),
            damping,
            remarks if is_definite else (*remarks, NOT_DEFINITE),
        )

    def _entries(self, parts: Sequence[Array]) -> Floats:
        """(nnz,) of H, on the host."""
        xp, num = self._backend.xp, len(self._pattern.indices)
        total = xp.zeros(num)
        for own, places, doubled in zip(parts, self._places, self._doubled, strict=True):
            if doubled is not None:
                own = own.copy()
                own[doubled] *= 2.0
            total += xp.bincount(places, weights=own.ravel(), minlength=num)
        return np.asarray(self._backend.to_host(total))

    def _scales(self, entries: Floats, moves: NDArray[np.bool_] | None) -> Floats:
        """What makes the diagonal of H one; 0 for what is held, and for rows of zeros."""
        sizes = np.abs(entries[self._diagonal])
        if not sizes.all():
            pattern, largest = self._pattern, np.zeros(len(sizes))
            np.maximum.at(largest, pattern.rows, np.abs(entries))
            np.maximum.at(largest, pattern.indices, np.abs(entries))
            sizes = np.where(sizes > 0.0, sizes, largest)
        if moves is not None:
            sizes = np.where(moves, sizes, 0.0)
        return np.where(sizes > 0.0, 1.0 / np.sqrt(np.where(sizes > 0.0, sizes, 1.0)), 0.0)

    def _factorized(self, values: Floats) -> Floats:
        """Factorise, and return the pivots."""
        self._factorization.values[...] = values
        self._factorization.factorize()
        pivots: Floats = self._factorization.factors()[1]
        return pivots

    def _refined(self, values: Floats, rhs: Floats, solution: Floats) -> Floats:
        """The solution by the last factorisation, corrected by residuals of the system itself.

        That of a positive definite matrix needs none: its error is the rounding of the entries.
        """
        pattern = self._pattern
        shape = (pattern.size, pattern.size)
        upper = csc_matrix((values, pattern.indices, pattern.indptr), shape=shape)
        lower, diagonal = upper.T, values[self._diagonal]
        for _ in range(REFINEMENTS):
            left = rhs - (upper @ solution + lower @ solution - diagonal * solution)
            solution = solution + self._factorization.solved(left)
        return solution


def singular_text(damping: float) -> str:
    """What is to be said of a system that was damped."""
    return (
        f"The Hessian is singular: {damping:g} of its diagonal was added. Gradients mean something "
        "if the loss function does not depend on what the residuals leave free, such as where a "
        "map as a whole is; hold that, for example by a prior."
    )
