"""Users' arrays of a gradient: derivatives by values in, derivatives by what was given out.

Cost tier: once for a gradient.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import HOST, as_library, location
from caspar.runtime.backend import Backend
from caspar.solver.gradients.adjoint import Derived
from caspar.solver.gradients.gradient import Given
from caspar.solver.input.array_reader import ArrayReader


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

    def read(self, given: Any) -> dict[str, Array]:
        """(n, storage_dim) of each node type; zeros of those that are not named.

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
            name: self._rows(f"cotangents, node type {name}", given[name], name, looks=True)
            if name in given
            else zeros((self._counts[name], dim))
            for name, dim in self._dims.items()
        }

    def _rows(self, where: str, given: Any, name: str, *, looks: bool = False) -> Array:
        reader = ArrayReader(self._backend, Precision.FLOAT64, check_values=False)
        rows = reader.rows(where, given, self._dims[name])
        if int(rows.shape[0]) != self._counts[name]:
            raise InputError(
                f"{where}: {int(rows.shape[0])} rows; there are {self._counts[name]} nodes"
            )
        found = self._backend.upload(rows)
        if looks and not bool(self._backend.xp.isfinite(found).all()):
            raise InputError(f"{where}: a number is NaN or infinite; derivatives must be finite")
        return found


def given_back(
    backend: Backend,
    nodes: Sequence[NodeType],
    given: Given,
    derived: Derived,
) -> dict[str, Any]:
    """Everything as the kind of array that values were given as, in the shapes given.

    Args:
        backend: Where the arrays are.
        nodes: Node types of the solver.
        given: To the solve.
        derived: On the device.
    """
    problem, counts = given.problem, given.problem.counts
    kind = problem.given[nodes[0].name]
    is_host = location(kind) == HOST

    def back(array: Array, like: Any) -> Any:
        array = _shaped(backend.to_host(array) if is_host else array, like)
        return as_library(array, kind)

    found: dict[str, Any] = {}
    for node in nodes:
        start = derived.starts[node.name]
        zeros = (counts[node.name], node.storage_dim)
        array = backend.xp.zeros(zeros) if start is None else start
        found[node.name] = back(array, problem.given[node.name])
    for name, arrays in problem.factors.items():
        own, passed = derived.constants.get(name, {}), given.arrays[name]
        empty = {
            source: backend.upload(constant.rows) * 0.0
            for source, constant in arrays.constants.items()
        }
        found[name] = {
            source: back(own.get(source, zeros), _passed(passed, source))
            for source, zeros in empty.items()
        }
    backend.synchronize()
    return found


def _passed(arrays: Any, source: str) -> Any:
    """What was passed for a constant; a number if it was left out."""
    passed = arrays.get(source, 1.0) if isinstance(arrays, Mapping) else 1.0
    return passed["values"] if isinstance(passed, Mapping) else passed


def _shaped(array: Array, like: Any) -> Array:
    """(rows, dim) in the shape in which the argument was given."""
    shape = tuple(like.shape) if hasattr(like, "shape") else np.shape(like)
    if len(shape) == 3:
        # SymForce stores matrices column by column
        return array.reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1)
    return array.reshape(shape)
