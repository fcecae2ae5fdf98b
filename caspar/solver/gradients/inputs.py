"""Users' arrays of a gradient: derivatives by values in, derivatives by what was given out.

Cost tier: once for a gradient.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import HOST, as_library, location
from caspar.runtime.backend import Backend
from caspar.solver.gradients.adjoint import Derived
from caspar.solver.input.array_reader import ArrayReader, unblocked
from caspar.solver.input.factor_arrays import with_bare_factors
from caspar.solver.input.problem import Problem


class Cotangents:
    """Reads derivatives by the values of a result.

    Args:
        backend: Where the solver runs.
        nodes: Its node types.
        counts: Instances of each.
        values: Of the result.

    Attributes:
        values: (n, storage_dim) float64 of each node type, on the device.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        counts: Mapping[str, int],
        values: Mapping[str, Any],
    ) -> None:
        self._backend = backend
        self._dims = {node.name: node.storage_dim for node in nodes}
        self._counts = counts
        self.values = {
            name: self._rows(f"node type {name}", values[name], name) for name in self._dims
        }

    def read(self, given: Any, *, are_partial: bool = False) -> dict[str, Array]:
        """(n, storage_dim) of each node type; zeros of those that are not named.

        Args:
            given: As the user passed them.
            are_partial: Numbers that are not finite count as 0.

        Raises:
            InputError: Names the node type, what is wrong, what is allowed.
        """
        known = ", ".join(self._dims)
        if not isinstance(given, Mapping):
            raise InputError(
                f"cotangents: expected a mapping of node types ({known}) to arrays of the shape of "
                f"their values, got {type(given).__name__}"
            )
        for name in given:
            if name not in self._dims:
                close = difflib.get_close_matches(str(name), list(self._dims), 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise InputError(f"cotangents: {name!r} is no node type{hint}; these are {known}")
        zeros = self._backend.xp.zeros
        return {
            name: self._finite(name, given[name], are_partial=are_partial)
            if name in given
            else zeros((self._counts[name], dim))
            for name, dim in self._dims.items()
        }

    def _finite(self, name: str, given: Any, *, are_partial: bool) -> Array:
        """The cotangents of a node type."""
        where = f"cotangents, node type {name}"
        rows, xp = self._rows(where, given, name), self._backend.xp
        is_finite = xp.isfinite(rows)
        if bool(is_finite.all()):
            return rows
        if not are_partial:
            raise InputError(f"{where}: a number is NaN or infinite; derivatives must be finite")
        return xp.where(is_finite, rows, 0.0)

    def _rows(self, where: str, given: Any, name: str) -> Array:
        reader = ArrayReader(self._backend, Precision.FLOAT64, check_values=False)
        rows = reader.rows(where, given, self._dims[name])
        if int(rows.shape[0]) != self._counts[name]:
            raise InputError(
                f"{where}: {int(rows.shape[0])} rows; there are {self._counts[name]} nodes"
            )
        return self._backend.upload(rows)


Shape = Callable[[Argument, Array, Any], Array]
"""A function that gives the (rows, dim) of a constant argument the shape of the passed array."""


def given_back(
    backend: Backend,
    problem: Problem,
    factors: Sequence[TracedFactor],
    arrays: Mapping[str, Any],
    derived: Derived,
    shape: Shape,
) -> dict[str, Any]:
    """Everything as the kind of array that values were given as, in the shapes given.

    Args:
        backend: Where the arrays are.
        problem: What was differentiated.
        factors: All factors, with their terms.
        arrays: As the user passed them.
        derived: On the device.
        shape: Gives constants their shapes.
    """
    arrays = with_bare_factors(arrays, factors)
    kind = arrays[next(iter(problem.values))]
    is_host = location(kind) == HOST

    def back(array: Array) -> Any:
        return as_library(backend.to_host(array) if is_host else array, kind)

    found: dict[str, Any] = {}
    for name, values in problem.values.items():
        start = derived.starts.get(name)
        array = backend.xp.zeros(values.shape) if start is None else start
        found[name] = back(array.reshape(shape_of(arrays[name])))
    for factor in factors:
        own, passed = derived.constants.get(factor.name, {}), arrays[factor.name]
        found[factor.name] = {
            one.source: back(
                (shape if one.table is None else _tables)(
                    one, _derivative(own, one, problem, factor), passed
                )
            )
            for one in factor.inputs
            if one.node is None
        }
    backend.synchronize()
    return found


def _derivative(
    own: Mapping[str, Array], one: Argument, problem: Problem, factor: TracedFactor
) -> Array:
    """Zeros for a factor without instances."""
    if one.source in own:
        return own[one.source]
    return problem.factors[factor.name].constants[one.source].rows * 0.0


def shaped(one: Argument, rows: Array, passed: Any) -> Array:
    """(rows, dim) of a constant as it was passed to a `Solver`."""
    like = passed_for(one, passed)
    shape = shape_of(like)
    return with_matrices(rows, shape, is_matrix=len(shape) == 3)


def _tables(one: Argument, rows: Array, passed: Any) -> Array:
    """The memory of tables as they were passed: without their sizes."""
    shape = shape_of(passed_for(one, passed))
    assert one.table is not None
    num_tables = (int(rows.shape[0]) - math.prod(shape)) // one.table.dims
    return rows.reshape(num_tables, -1)[:, one.table.dims :].reshape(shape)


def with_matrices(rows: Array, shape: tuple[int, ...], *, is_matrix: bool) -> Array:
    """Rows in a shape; SymForce stores matrices column by column."""
    if not is_matrix:
        return rows.reshape(shape)
    return rows.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)


def passed_for(one: Argument, passed: Any) -> Any:
    """Return what was passed for a constant (values of an indexed or ragged one), or a number.

    Args:
        one: The argument.
        passed: What was passed for its factor.
    """
    given = passed.get(one.source, 1.0) if isinstance(passed, Mapping) else 1.0
    return given["values"] if isinstance(given, Mapping) else given


def shape_of(given: Any) -> tuple[int, ...]:
    """The shape of what a user passed, also of a list or a number."""
    given = unblocked(given)
    return tuple(given.shape) if hasattr(given, "shape") else np.shape(given)
