"""The checked input of `Solver.solve`: see `problem_reader`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.arrays import HOST, Moved, give_back, location
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.bounds import NodeBounds
from caspar.solver.input.factor_arrays import ConstantArray, FactorArrays
from caspar.solver.input.fixed import num_held
from caspar.solver.input.given_parts import GivenParts, back_in_parts
from caspar.solver.input.parted_array import PartedArray, joined, on_host


@dataclass(frozen=True)
class Problem:
    """Checked arrays, where they were given: on the host, or on the backend's device.

    Attributes:
        values: For each node type's name its (n, storage_dim) values, of the type of values.
        given: For each node type's name what the user passed; of a blocked array its rows, of
            parts `GivenParts`.
        dtypes: For each node type's name the floating type its values go back in.
        factors: For each factor's name its arrays.
        free: For each node type of which something is held, by name: (n, tangent_dim) numbers of
            the storage type, 1 for each component of the tangent that moves, else 0.
        bounds: For each node type that has bounds, by name; it is in `free` too.
        in_parts: Names of the node types and factors that were given in parts. On several devices
            their arrays are `PartedArray`s.
    """

    values: Mapping[str, Array]
    given: Mapping[str, Any]
    dtypes: Mapping[str, Any]
    factors: Mapping[str, FactorArrays]
    free: Mapping[str, Array] = field(default_factory=dict)
    bounds: Mapping[str, NodeBounds] = field(default_factory=dict)
    in_parts: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Instances of each node type, by name."""
        return {name: int(array.shape[0]) for name, array in self.values.items()}

    @property
    def num_instances(self) -> dict[str, int]:
        """Instances of each factor, by name."""
        return {name: arrays.count for name, arrays in self.factors.items()}

    def num_held(self, names: Iterable[str]) -> dict[str, int]:
        """Components of tangents that are held, for those of some node types that have masks."""
        return {name: num_held(self.free[name]) for name in names if name in self.free}

    def with_indices(self, upload: Callable[[Array], Array]) -> "Problem":
        """The same, with the indices where a function puts them."""
        factors = {
            name: replace(
                arrays,
                nodes={
                    argument: None if index is None else upload(index)
                    for argument, index in arrays.nodes.items()
                },
                constants={
                    source: constant
                    if constant.index is None
                    else ConstantArray(constant.rows, upload(constant.index))
                    for source, constant in arrays.constants.items()
                },
            )
            for name, arrays in self.factors.items()
        }
        return replace(self, factors=factors)

    def joined(self, member: Member) -> "Problem":
        """The same without parts, with arrays that a device reads."""
        bring = partial(joined, member)
        problem = self.with_indices(bring)
        factors = {
            name: replace(
                arrays,
                constants={
                    source: ConstantArray(bring(constant.rows), constant.index)
                    for source, constant in arrays.constants.items()
                },
            )
            for name, arrays in problem.factors.items()
        }
        values = {name: bring(rows) for name, rows in problem.values.items()}
        free = {name: bring(rows) for name, rows in problem.free.items()}
        return replace(problem, values=values, factors=factors, free=free)

    def part(self, factors: Sequence[TracedFactor], nodes: Sequence[NodeType]) -> "Problem":
        """Return the part of the problem that belongs to some factors and node types."""
        return Problem(
            {node.name: self.values[node.name] for node in nodes},
            {node.name: self.given[node.name] for node in nodes},
            {node.name: self.dtypes[node.name] for node in nodes},
            {factor.name: self.factors[factor.name] for factor in factors},
            {node.name: self.free[node.name] for node in nodes if node.name in self.free},
            {node.name: self.bounds[node.name] for node in nodes if node.name in self.bounds},
        )

    def active_bounds(self, moved: Mapping[str, Array], backend: Backend) -> dict[str, Any]:
        """See `SolveResult.active_bounds`.

        Args:
            moved: As for `moved`.
            backend: Likewise.
        """
        return {
            name: limits.active(on_host(backend, moved.get(name, self.values[name])))
            for name, limits in self.bounds.items()
        }

    def moved(self, values: Mapping[str, Array], backend: Backend) -> dict[str, Any]:
        """Values of the kind, place and floating type that was given.

        Args:
            values: For some node types their (n, storage_dim) values after a solve, on the
                backend's device; the others have not moved.
            backend: Where the solve ran.
        """
        returned: dict[str, Any] = {}
        for name, given in self.given.items():
            start = self.values[name]
            end = values.get(name, start)
            if isinstance(given, GivenParts):
                dtype, has_held = self.dtypes[name], name in self.free
                returned[name] = back_in_parts(given, start, end, dtype, backend, has_held=has_held)
                continue
            # what comes from the device to the host is a copy anyhow
            if end is start or location(given) != HOST:
                end = end.copy()
            returned[name] = give_back(
                Moved(start, end, has_held=name in self.free),
                given,
                self.dtypes[name],
                backend.to_host,
                backend.upload,
            )
        # the caller's stream is another one
        backend.synchronize()
        return returned

    def bytes_on(self, backend: Backend) -> int:
        """Bytes of those values, constants and indices that are on a backend's device."""
        arrays = self._arrays()
        kind = backend.xp.ndarray
        whole = [array for array in arrays if not isinstance(array, PartedArray)]
        for array in arrays:
            whole += array.parts if isinstance(array, PartedArray) else ()
        return sum(int(array.nbytes) for array in whole if isinstance(array, kind))

    @property
    def is_parted(self) -> bool:
        """Return whether some arrays are in parts on several devices."""
        return any(isinstance(array, PartedArray) for array in self._arrays())

    @property
    def is_on_host(self) -> bool:
        """Return whether all values, constants and indices are on the host, none in parts."""
        return all(isinstance(array, np.ndarray) for array in self._arrays())

    def _arrays(self) -> list[Array]:
        arrays = list(self.values.values())
        for factor in self.factors.values():
            arrays += [index for index in factor.nodes.values() if index is not None]
            for constant in factor.constants.values():
                arrays += [constant.rows] + ([] if constant.index is None else [constant.index])
        return arrays


__all__ = ["ConstantArray", "FactorArrays", "Problem"]
"""A problem and its parts."""
