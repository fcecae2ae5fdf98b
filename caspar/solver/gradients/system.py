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
from caspar.solver.normal.blocks import Coupling, Unknowns, block_lists, coupled, matrix_entries

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SINGULAR_PIVOT = 1e-12
"""Pivot of the scaled H up to which it counts as singular; entries are known to about 1e-15."""

DAMPING = 1e-8
"""Damping that is added to the diagonal of a singular H, in units of its scaled diagonal."""

REFINEMENTS = 2
"""Corrections by the residual of a system that is damped, or not positive definite."""

NOT_DEFINITE = (
    "The Hessian is not positive definite: these values are no minimum, or have not converged. "
    "Solve with tighter tolerances."
)


@dataclass(frozen=True)
class Instances:
    """The nodes of a factor's instances, on the host.

    Attributes:
        index: (m,) the node of each instance, of each argument.
    """

    types: tuple[str, ...]
    index: tuple[NDArray[np.int32], ...]

    def unknowns(self, unknowns: Unknowns) -> Integers:
        """(m, components of an instance's tangents): the number of each."""
        return np.concatenate(
            [
                unknowns.numbers(np, name, index, np.arange(unknowns.nodes[name].dim))
                for name, index in zip(self.types, self.index, strict=True)
            ],
            axis=1,
        )


@dataclass(frozen=True)
class Solution:
    """The solution of H z = b, by node type, on the device.

    Attributes:
        z: (n, tangent_dim); 0 for components that stay.
        stays: (n, tangent_dim) true for components that are held or that no residual depends on.
        damping: Number added to the scaled diagonal; 0: none.
        is_partial: Whether parts of H are not finite; z is 0 there.
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

        `parts`: For each factor (m, entries of an instance). `rhs`: By node type (n, tangent_dim)
        b. `moving`: By node type of which something is held (n, tangent_dim), 0 for that.
        """


class Hessian:
    """The entries of a Hessian, and the places that instances of factors add to.

    Attributes:
        rows: (nnz,) of the entries of the lower triangle, row after row, on the host.
        columns: (nnz,) ascending in a row, which ends with its diagonal entry.
        starts: (size + 1,) where rows begin.
    """

    def __init__(
        self, backend: Backend, unknowns: Unknowns, instances: Sequence[Instances]
    ) -> None:
        self._backend = backend
        couplings: list[Coupling] = []
        for one in instances:
            couplings += coupled(np, unknowns, zip(one.types, one.index, strict=True))
        lists, size = block_lists(np, unknowns, couplings), unknowns.size
        entries, self.starts = matrix_entries(np, lists, unknowns).by_rows(np, size)
        self.rows, self.columns = entries.rows, entries.columns
        keys = entries.rows * size + entries.columns
        self._places: list[Array] = []
        self._doubled: list[tuple[Array, ...] | None] = []
        for one in instances:
            own = one.unknowns(unknowns)
            row, column = np.tril_indices(own.shape[1])
            first, second = own[:, row], own[:, column]
            key = np.maximum(first, second) * size + np.minimum(first, second)
            self._places.append(backend.upload(np.searchsorted(keys, key).ravel()))
            # an instance that touches a node twice has entries on the diagonal beside its own
            twice = np.nonzero((first == second) & (row != column))
            self._doubled.append(tuple(map(backend.upload, twice)) if len(twice[0]) > 0 else None)

    def entries(self, parts: Sequence[Array]) -> Array:
        """(nnz,) sums of the instances' parts, on the device."""
        xp, num = self._backend.xp, len(self.columns)
        total = xp.zeros(num)
        for own, places, doubled in zip(parts, self._places, self._doubled, strict=True):
            if doubled is not None:
                own = own.copy()
                own[doubled] *= 2.0
            total += xp.bincount(places, weights=own.ravel(), minlength=num)
        return total


class SparseSystem:
    """Systems of all unknowns of a problem."""

    def __init__(
        self, backend: Backend, unknowns: Unknowns, instances: Sequence[Instances]
    ) -> None:
        self._backend, self._unknowns = backend, unknowns
        hessian = self._hessian = Hessian(backend, unknowns, instances)
        self._rows, self._columns = hessian.rows, hessian.columns
        self._diagonal = hessian.starts[1:].astype(np.int64) - 1
        self._factorization = QdldlFactorization(
            hessian.starts, hessian.columns.astype(np.int32), unknowns.size
        )

    def solve(
        self, parts: Sequence[Array], rhs: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> Solution | None:
        """See `HessianSystem`."""
        backend, unknowns = self._backend, self._unknowns
        entries: Floats = np.asarray(backend.to_host(self._hessian.entries(parts)))
        if not np.isfinite(entries).all():
            return None
        scale, diagonal = self._scales(entries, moving), self._diagonal
        values = entries * scale[self._rows] * scale[self._columns]
        values[diagonal] += scale == 0.0
        on_host = {name: backend.to_host(rhs[name]) for name in unknowns.nodes}
        scaled = unknowns.joined(np, on_host) * scale
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

    def _scales(self, entries: Floats, moving: Mapping[str, Array]) -> Floats:
        """Return scales that make the diagonal of H one; 0 for held unknowns and zero rows."""
        sizes = np.abs(entries[self._diagonal])
        if not sizes.all():
            largest = np.zeros(len(sizes))
            np.maximum.at(largest, self._rows, np.abs(entries))
            np.maximum.at(largest, self._columns, np.abs(entries))
            sizes = np.where(sizes > 0.0, sizes, largest)
        is_held = sizes == 0.0
        for name, part in self._unknowns.split(is_held).items():
            if name in moving:
                part |= np.asarray(moving[name]) == 0.0
        return np.where(is_held, 0.0, 1.0 / np.sqrt(np.where(is_held, 1.0, sizes)))

    def _factorized(self, values: Floats) -> Floats:
        self._factorization.values[...] = values
        self._factorization.factorize()
        pivots: Floats = self._factorization.factors()[1]
        return pivots

    def _refined(self, values: Floats, rhs: Floats, solution: Floats) -> Floats:
        """The solution by the last factorisation, corrected by residuals of the system itself.

        That of a positive definite matrix needs none: its error is the rounding of the entries.
        """
        shape = (self._unknowns.size, self._unknowns.size)
        upper = csc_matrix((values, self._columns, self._hessian.starts), shape=shape)
        lower, diagonal = upper.T, values[self._diagonal]
        for _ in range(REFINEMENTS):
            left = rhs - (upper @ solution + lower @ solution - diagonal * solution)
            solution = solution + self._factorization.solved(left)
        return solution


def singular_text(damping: float) -> str:
    """Return a remark on a system that was damped."""
    return (
        f"The Hessian is singular: {damping:g} of its diagonal was added. Gradients mean something "
        "if the loss function does not depend on what the residuals leave free, such as where a "
        "map as a whole is; hold that, for example by a prior."
    )
