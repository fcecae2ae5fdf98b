"""Read the user's restrictions on values: held components and bounds.

Input: `fixed`, `bounds` and start values. Output: masks and limits over the tangents of node
types, and start values within these. Once for each solve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.input.bounds import NodeBounds, held_by_bounds, read_bounds
from caspar.solver.input.fixed import read_fixed


@dataclass(frozen=True)
class Constraints:
    """The user's constraints; see `Solver.solve`.

    Attributes:
        fixed: Held nodes and components; None: nothing.
        bounds: Limits of fields; None: there are none.
    """

    fixed: Mapping[str, Any] | None = None
    bounds: Mapping[str, Any] | None = None


NOTHING = Constraints()


@dataclass(frozen=True)
class Constrained:
    """Constraints as arrays.

    Attributes:
        values: For each node type its start values, within the bounds.
        free: As in `Problem`; of types that have bounds too.
        bounds: Of the node types that have some.
    """

    values: Mapping[str, Array]
    free: Mapping[str, Array]
    bounds: Mapping[str, NodeBounds]


def read_constraints(
    constraints: Constraints,
    nodes: Sequence[NodeType],
    values: Mapping[str, Array],
    dtypes: Mapping[str, Any],
    reader: ArrayReader,
) -> Constrained:
    """Check what the user gave.

    Args:
        constraints: It.
        nodes: The solver's node types.
        values: Start values of each, of the storage type.
        dtypes: The floating type in which each was given.
        reader: Knows the storage type, and brings values to the host.

    Raises:
        InputError: Names the node type and field, what is wrong and what is allowed.
    """
    values_type, storage = reader.types.values, reader.types.storage
    counts = {name: int(rows.shape[0]) for name, rows in values.items()}
    free = read_fixed(constraints.fixed, nodes, counts, storage)
    if constraints.bounds is None:
        return Constrained(values, free, {})
    known = {node.name for node in nodes} & {str(name) for name in constraints.bounds}
    on_host = {name: reader.on_host(values[name]) for name in known}
    least = float(np.finfo(values_type.value).eps)
    rounding = {name: 2.0 * max(least, float(np.finfo(dtypes[name]).eps)) for name in known}
    bounds = read_bounds(constraints.bounds, nodes, on_host, free, rounding)
    for name, limits in bounds.items():
        free[name] = np.where(held_by_bounds(limits), 0.0, 1.0).astype(storage.value)
    inside = {
        name: reader.like(limits.within(on_host[name]), values[name])
        for name, limits in bounds.items()
    }
    return Constrained({**values, **inside}, free, bounds)
