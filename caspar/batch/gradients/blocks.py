"""The linear systems of a batch's gradients: a dense block for each problem.

Blocks are inverted all at once, by `roots_of`. Cost tier: once for a gradient.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from caspar.batch.generate.shape import BatchShape
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.gradients.system import Hessian, Instances, Integers, Solution
from caspar.solver.normal.blocks import Unknowns
from caspar.solver.normal.elimination import roots_of


class BlockSystem:
    """Systems with a dense block for each problem.

    Args:
        backend: Where parts and right-hand sides are.
        shape: Nodes of a problem.
        num_problems: P.
        unknowns: Of the node types, for all problems.
        instances: Of each factor.
    """

    def __init__(
        self,
        backend: Backend,
        shape: BatchShape,
        num_problems: int,
        unknowns: Unknowns,
        instances: Sequence[Instances],
    ) -> None:
        self._backend, self._unknowns, self._num = backend, unknowns, num_problems
        sizes = {one.node.name: one.tangent_size for one in shape.nodes}
        self._sizes = {name: sizes[name] for name in unknowns.nodes}
        self._size = sum(self._sizes.values())
        hessian = self._hessian = Hessian(backend, unknowns, instances)
        problem, place = self._places()
        first = problem[hessian.rows] * self._size**2
        row, column = place[hessian.rows], place[hessian.columns]
        self._lower = backend.upload(first + row * self._size + column)
        self._upper = backend.upload(first + column * self._size + row)

    def _places(self) -> tuple[Integers, Integers]:
        """Of each unknown its problem, and its row in that problem's block."""
        blocks, places, first = [], [], 0
        for size in self._sizes.values():
            blocks.append(np.repeat(np.arange(self._num), size))
            places.append(first + np.tile(np.arange(size), self._num))
            first += size
        return np.concatenate(blocks), np.concatenate(places)

    def solve(
        self, parts: Sequence[Array], rhs: Mapping[str, Array], moving: Mapping[str, Array]
    ) -> Solution | None:
        """See `HessianSystem`; of a problem with a singular block by its pseudo-inverse."""
        backend, xp, size = self._backend, self._backend.xp, self._size
        total = xp.zeros(self._num * size * size)
        total[self._lower] = total[self._upper] = self._hessian.entries(parts)
        blocks = total.reshape(self._num, size, size)
        is_bad = ~xp.isfinite(blocks).all(axis=(1, 2))
        blocks[is_bad] = 0.0
        diagonal = xp.arange(size)
        sizes = xp.abs(blocks[:, diagonal, diagonal])
        sizes = xp.where(sizes > 0.0, sizes, xp.abs(blocks).max(axis=2))
        sizes = sizes * self._joined({name: self._moves(name, moving) for name in self._sizes})
        scale = xp.where(sizes > 0.0, 1.0 / xp.sqrt(xp.where(sizes > 0.0, sizes, 1.0)), 0.0)
        blocks = blocks * scale[:, :, None] * scale[:, None, :]
        blocks[:, diagonal, diagonal] += scale == 0.0
        roots, free = roots_of(backend, blocks)
        scaled = (self._joined(rhs) * scale)[:, :, None]
        z = (roots @ (roots.transpose(0, 2, 1) @ scaled))[:, :, 0] * scale
        remarks = self._remarks(len({one.number for one in free}), is_bad)
        is_partial = bool(is_bad.any())
        return Solution(self._split(z), self._split(scale == 0.0), 0.0, remarks, is_partial)

    def _moves(self, name: str, moving: Mapping[str, Array]) -> Array:
        if name in moving:
            return self._backend.upload(moving[name])
        return self._backend.xp.ones(self._shape(name))

    def _shape(self, name: str) -> tuple[int, int]:
        return self._unknowns.nodes[name].count, self._unknowns.nodes[name].dim

    def _joined(self, by_node: Mapping[str, Array]) -> Array:
        """(P, unknowns of a problem)."""
        rows = [by_node[name].reshape(self._num, size) for name, size in self._sizes.items()]
        return self._backend.xp.concatenate(rows, axis=1)

    def _split(self, rows: Array) -> dict[str, Array]:
        found, first = {}, 0
        for name, size in self._sizes.items():
            part = self._backend.xp.ascontiguousarray(rows[:, first : first + size])
            found[name] = part.reshape(self._shape(name))
            first += size
        return found

    def _remarks(self, num_singular: int, is_bad: Array) -> tuple[str, ...]:
        remarks, num_bad = [], int(is_bad.sum())
        if num_singular > 0:
            remarks.append(
                f"The Hessian of {num_singular:,} of {self._num:,} problems is singular, or not "
                "positive definite: their gradients are those of the pseudo-inverse, in which free "
                "directions do not move. Hold these, for example by a prior."
            )
        if num_bad > 0:
            remarks.append(
                f"Second derivatives of {num_bad:,} of {self._num:,} problems are not finite: "
                "their gradients are zero."
            )
        return tuple(remarks)
