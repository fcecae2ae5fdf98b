"""Some problems of a batch as a batch of their own, and rows of instances by problem.

Input: checked arrays on the backend's device, NumPy's or CuPy's. Output: copies of the rows that
belong to chosen problems. Cost tier: once for a solve of the loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.batch.generate import parameters as names
from caspar.batch.generate.programs import constant_name
from caspar.batch.generate.shape import BatchShape, Instances, is_per_instance
from caspar.batch.input import Batch
from caspar.frontend.factors.trace import ArgumentKind
from caspar.memory.array import Array
from caspar.runtime.backend import Backend

Chosen = NDArray[np.int64]
"""(k,) numbers of problems, ascending, on the host."""


@dataclass(frozen=True)
class ProblemRows:
    """The instances of a factor: those of a problem stand together.

    Attributes:
        xp: NumPy or CuPy.
        starts: (P + 1,) the first instance of each problem, and the number of all.
        length: Instances of each problem; None: they differ.
    """

    xp: Any
    starts: Array
    length: int | None

    @staticmethod
    def of(backend: Backend, batch: Batch, number: int) -> "ProblemRows":
        """The instances of the factor with a number."""
        xp = backend.xp
        if batch.shape.factors[number].instances is Instances.RAGGED:
            starts = backend.upload(batch.arrays[names.factor_name(number)][0])
            return ProblemRows(xp, starts.astype(np.int64), None)
        length = batch.instances.get(number, 1)
        return ProblemRows(xp, xp.arange(batch.num_problems + 1) * length, length)

    @property
    def counts(self) -> Array:
        """(P,) instances of each problem."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def owners(self) -> Array:
        """(m,) the problem of each instance."""
        xp, count = self.xp, len(self.starts) - 1
        if self.length is not None:
            return xp.repeat(xp.arange(count), self.length)
        return xp.searchsorted(self.starts, xp.arange(int(self.starts[-1])), side="right") - 1

    def chosen(self, problems: Array) -> tuple[Array, Array]:
        """Return the instances of some problems, and the first one of each among these."""
        counts = self.counts[problems]
        starts = self.xp.zeros(len(problems) + 1, np.int64)
        starts[1:] = self.xp.cumsum(counts)
        place = self.xp.arange(int(starts[-1]))
        owner = self.xp.searchsorted(starts, place, side="right") - 1
        return self.starts[problems][owner] + place - starts[owner], starts

    def by_problem(self, rows: Array) -> Array:
        """(P, most instances * dim) of (m, dim) rows, and 0 where a problem has fewer."""
        count = len(self.starts) - 1
        if self.length is not None:
            return rows.reshape(count, self.length * rows.shape[1])
        xp, owner = self.xp, self.owners
        most = int(self.counts.max()) if count > 0 else 0
        padded = xp.zeros((count, most, rows.shape[1]))
        padded[owner, xp.arange(len(rows)) - self.starts[owner]] = rows
        return padded.reshape(count, most * rows.shape[1])


def on_device(batch: Batch, backend: Backend) -> Batch:
    """The batch with all that kernels read on the device, and start values of its own."""
    upload = backend.upload
    return replace(
        batch,
        starts={name: upload(rows).copy() for name, rows in batch.starts.items()},
        free={name: upload(rows) for name, rows in batch.free.items()},
        arrays={name: (upload(rows), stride) for name, (rows, stride) in batch.arrays.items()},
        num_residuals=upload(batch.num_residuals),
    )


def part_of(batch: Batch, backend: Backend, chosen: Chosen) -> Batch:
    """Some problems of a batch that is on the device."""
    if len(chosen) == batch.num_problems:
        return batch
    problems = backend.upload(chosen)

    def taken(rows: Array, length: int) -> Array:
        grouped = rows.reshape(batch.num_problems, length, *rows.shape[1:])
        return grouped[problems].reshape(-1, *rows.shape[1:])

    counts = {nodes.node.name: nodes.count for nodes in batch.shape.nodes}
    arrays = {
        name: (taken(rows, stride) if stride > 0 else rows, stride)
        for name, (rows, stride) in batch.arrays.items()
    }
    for number, one in enumerate(batch.shape.factors):
        if one.instances is Instances.RAGGED:
            rows, starts = ProblemRows.of(backend, batch, number).chosen(problems)
            for name in _by_instance(batch.shape, number):
                arrays[name] = (batch.arrays[name][0][rows], 0)
            arrays[names.factor_name(number)] = (starts.astype(np.int32), 0)
    bounds = {}
    for name, limits in batch.bounds.items():
        own = (chosen[:, None] * counts[name] + np.arange(counts[name])).ravel()
        bounds[name] = replace(
            limits,
            lower=limits.lower[own],
            upper=limits.upper[own],
            lower_given=limits.lower_given[own],
            upper_given=limits.upper_given[own],
        )
    return replace(
        batch,
        num_problems=len(chosen),
        starts={name: taken(rows, counts[name]) for name, rows in batch.starts.items()},
        free={name: taken(rows, counts[name]) for name, rows in batch.free.items()},
        bounds=bounds,
        arrays=arrays,
        num_residuals=batch.num_residuals[problems],
    )


def _by_instance(shape: BatchShape, number: int) -> Iterator[str]:
    """Arguments of the kernel that have an entry for each instance of a factor."""
    for argument in shape.factors[number].factor.inputs:
        name = constant_name(number, argument)
        if argument.node is not None:
            if names.has_index(shape, argument):
                yield name
        elif argument.kind is ArgumentKind.CONST_INDEXED:
            yield names.index_name(name)
        elif is_per_instance(argument):
            yield name
