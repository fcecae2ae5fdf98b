"""A batch as one problem of `caspar.solver.gradients`.

Node i of problem p is node n p + i there, and what several instances share is an indexed constant.
Cost tier: once for a gradient.
"""

from collections.abc import Container
from dataclasses import replace

import numpy as np

from caspar.batch.generate import parameters as names
from caspar.batch.generate.programs import constant_name
from caspar.batch.generate.shape import Instances, ProblemFactor
from caspar.batch.input import Batch
from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem


def as_one_factor(factor: TracedFactor) -> TracedFactor:
    """A factor for all problems at once: nodes are shared, constants indexed."""

    def shared(one: Argument) -> Argument:
        is_node = one.node is not None
        kind = ArgumentKind.NODE_SHARED if is_node else ArgumentKind.CONST_INDEXED
        return replace(one, kind=kind)

    return replace(
        factor,
        arguments=tuple(map(shared, factor.arguments)),
        terms=tuple(map(shared, factor.terms)),
    )


def as_one_problem(batch: Batch, backend: Backend, names: Container[str] | None = None) -> Problem:
    """A batch as a problem of factors from `as_one_factor`, on the device.

    It has the values after a solve, in float64, and the arrays of named factors; None: of all.
    """
    return Problem(
        values={name: backend.upload(rows) for name, rows in batch.starts.items()},
        given={},
        dtypes=batch.dtypes,
        factors={
            one.factor.name: FlatFactor(batch, backend, number, one).arrays()
            for number, one in enumerate(batch.shape.factors)
            if names is None or one.factor.name in names
        },
        free=batch.free,
        bounds=batch.bounds,
    )


class FlatFactor:
    """The arrays of one factor, for all problems.

    Attributes:
        problem: (m,) the problem of each instance, on the device.
    """

    def __init__(self, batch: Batch, backend: Backend, number: int, one: ProblemFactor) -> None:
        self._batch, self._backend = batch, backend
        self._number, self._one = number, one
        xp, count = backend.xp, batch.num_problems
        problems = xp.arange(count)
        if one.instances is Instances.RAGGED:
            starts = backend.upload(batch.arrays[names.factor_name(number)][0])
            total = int(starts[-1])
            # CuPy's repeat takes no array
            self.problem = xp.searchsorted(starts, xp.arange(total), side="right") - 1
            self._within = xp.arange(total) - starts[self.problem]
            self._row = xp.arange(total)
        else:
            length = batch.instances.get(number, 1)
            self.problem = xp.repeat(problems, length)
            self._within = xp.tile(xp.arange(length), count)
            self._row = None

    def arrays(self) -> FactorArrays:
        """Indices and constants."""
        factor = self._one.factor
        constants = {
            one.source: ConstantArray(
                self._array(constant_name(self._number, one))[0], self._int32(self._row_of(one))
            )
            for one in factor.inputs
            if one.node is None
        }
        count = int(self.problem.shape[0])
        by_instance = tuple(term.source for term in factor.terms)
        nodes = {one.name: self._int32(self._node_of(one)) for one in factor.nodes}
        return FactorArrays(count, nodes, constants, by_instance, count)

    def _array(self, name: str) -> tuple[Array, int]:
        array, stride = self._batch.arrays[name]
        return self._backend.upload(array), stride

    def _row_of(self, argument: Argument) -> Array:
        """Return the row of an argument's array that each instance reads."""
        name = constant_name(self._number, argument)
        stride = self._batch.arrays[name][1]
        if argument.kind is ArgumentKind.CONST_UNIQUE:
            return self.problem * stride
        if argument.kind is ArgumentKind.CONST_INDEXED:
            index, own_stride = self._array(names.index_name(name))
            return index[self._place(own_stride)] + self.problem * stride
        return self._place(stride)

    def _place(self, stride: int) -> Array:
        """Return the row of each instance's own in an array."""
        return self._within + self.problem * stride if self._row is None else self._row

    def _node_of(self, argument: Argument) -> Array:
        """Return the node, counted through all problems, that each instance touches."""
        count = self._batch.shape.nodes_of(argument).count
        if count == 1:
            return self.problem
        if argument.kind is ArgumentKind.NODE_PAIR:
            within = self._within + (1 if argument.successor else 0)
        else:
            index, stride = self._array(constant_name(self._number, argument))
            within = index[self._place(stride)]
        return self.problem * count + within

    def _int32(self, index: Array) -> Array:
        return index.astype(np.int32)
