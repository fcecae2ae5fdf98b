"""The checked input of `Solver.solve`, and the arrays of its factors: see `problem_reader`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from caspar.frontend.factors.trace import ArgumentKind, NodeType, TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.array import Array
from caspar.runtime.arrays import HOST, Moved, give_back, location
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.constraints import NodeBounds, num_held
from caspar.solver.input.parted_array import GivenParts, PartedArray, back_in_parts, joined, on_host


@dataclass(frozen=True)
class ConstantArray:
    """Values of a constant argument.

    Attributes:
        rows: (m, dim) floating values of the type of values; of narrow arguments of storage. Tables
            in float16: uint16, its bits.
        index: (n,) int32 row of each factor; None where rows are sequential or unique.
    """

    rows: Array
    index: Array | None


@dataclass(frozen=True)
class FactorArrays:
    """Arrays of one factor, by argument name.

    Either all arrays with one entry for each instance are a `PartedArray`, in the same parts, or
    none is.

    Attributes:
        count: Instances; may be 0.
        nodes: (count,) int32 node of each instance; None for unique nodes.
        constants: Values of the constant arguments, of weights and of what a loss depends on.
        by_instance: Weights and parameters of losses that have one number for each instance.
    """

    count: int
    nodes: Mapping[str, Array | None]
    constants: Mapping[str, ConstantArray]
    by_instance: tuple[str, ...]
    num_counted: int

    @property
    def offsets(self) -> list[int] | None:
        """Offsets of the parts of a factor that is in parts; else None."""
        for array in (
            *self.nodes.values(),
            *(one.index for one in self.constants.values()),
            *(one.rows for one in self.constants.values()),
        ):
            if isinstance(array, PartedArray):
                return array.offsets
        return None

    @property
    def bytes_by_instance(self) -> int:
        """Bytes of arrays with a row for each instance that are whole, and not on the host."""
        arrays = [*self.nodes.values()]
        for constant in self.constants.values():
            arrays += [constant.index, constant.rows]
        return sum(
            int(array.nbytes)
            for array in arrays
            if array is not None
            and not isinstance(array, np.ndarray | PartedArray)
            and int(array.shape[0]) == self.count
        )

    def larger_than(self, num_bytes: int) -> tuple[str, ...]:
        """Names of the constants that take more bytes."""
        found = self.constants.items()
        return tuple(name for name, one in found if int(one.rows.nbytes) > num_bytes)

    def narrowed(self, factor: TracedFactor, types: Types) -> "FactorArrays":
        """The same, with the constants of a factor that are narrow in the type of storage."""
        names = {one.source for one in factor.inputs if one.is_narrow and not one.is_half}
        if len(names) == 0:
            return self
        constants = {
            name: replace(one, rows=one.rows.astype(types.storage.value, copy=False))
            if name in names
            else one
            for name, one in self.constants.items()
        }
        return replace(self, constants=constants)


def sources_by_instance(factor: TracedFactor, arrays: FactorArrays) -> set[str]:
    """Names of the constants that have a row for each instance, without an index."""
    each = {one.source for one in factor.inputs if one.kind is ArgumentKind.CONST_SEQUENTIAL}
    return each | set(arrays.by_instance)


def joined_arrays(
    parts: Sequence[FactorArrays],
    join: Callable[[Sequence[Array]], Array],
    constant: Callable[[str, Sequence[ConstantArray]], ConstantArray],
) -> FactorArrays:
    """One factor of the instances of several parts, all of which have the same arguments.

    `join` puts arrays one behind the other; `constant` makes a constant of those of all parts.
    """
    first = parts[0]
    return FactorArrays(
        sum(one.count for one in parts),
        {
            name: None if index is None else join([one.nodes[name] for one in parts])
            for name, index in first.nodes.items()
        },
        {
            source: constant(source, [one.constants[source] for one in parts])
            for source in first.constants
        },
        first.by_instance,
        sum(one.num_counted for one in parts),
    )


def with_bare_factors(arrays: Any, factors: Sequence[TracedFactor]) -> Any:
    """Arrays with `{}` for each factor that needs none and got None, `[]` or nothing.

    Patches of tables are taken apart, see `with_patches`.
    """
    if not isinstance(arrays, Mapping):
        return arrays
    bare = [one.name for one in factors if len(one.required) == 0]
    missing: dict[str, Any] = {name: {} for name in bare if _is_nothing(arrays.get(name))}
    arrays = {**arrays, **missing} if len(missing) > 0 else arrays
    if not any(factor.patches for factor in factors):
        return arrays
    from caspar.frontend.patches import with_patches

    return with_patches(arrays, factors)


def _is_nothing(given: Any) -> bool:
    return given is None or (isinstance(given, list | tuple) and len(given) == 0)


def no_mapping(given: Any, what: str, expected: Sequence[str]) -> str:
    """Say what is wrong with an object that is passed instead of a mapping."""
    got = type(given).__name__
    if len(expected) == 0:
        return f"there is nothing to pass, got {got}; pass {{}}, or leave it out"
    advice = "; if there are no instances, pass [] for each" if _is_nothing(given) else ""
    return f"expected a mapping of {what} ({', '.join(expected)}), got {got}{advice}"


@dataclass(frozen=True)
class Problem:
    """Checked arrays, where they were given: on the host, or on the backend's device.

    Attributes:
        values: For each node type's name its (n, storage_dim) values, of the type of values.
        given: For each node type's name what the user passed; of a blocked array its rows, of parts
            `GivenParts`.
        dtypes: For each node type's name the floating type its values go back in.
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

    def structure(self) -> tuple[list[object], list[Array]]:
        """All sizes, and all indices: plans and analyses are kept for equal ones."""
        sizes: list[object] = [(name, rows.shape) for name, rows in self.values.items()]
        indices: list[Array] = []
        for name, arrays in self.factors.items():
            sizes.append((name, arrays.by_instance, arrays.count))
            indices += [index for index in arrays.nodes.values() if index is not None]
            for source, constant in arrays.constants.items():
                sizes.append((name, source, constant.rows.shape))
                if constant.index is not None:
                    indices.append(constant.index)
        return sizes, indices

    def with_indices(self, upload: Callable[[Array], Array]) -> "Problem":
        """The same, with the indices where a function puts them."""
        return replace(self, factors=self._moved_factors(upload, lambda rows: rows))

    def brought(self, bring: Callable[[Array], Array]) -> "Problem":
        """The same, with all arrays where a function puts them."""
        return replace(
            self,
            values={name: bring(rows) for name, rows in self.values.items()},
            factors=self._moved_factors(bring, bring),
            free={name: bring(rows) for name, rows in self.free.items()},
        )

    def joined(self, member: Member) -> "Problem":
        """The same without parts, with arrays that a device reads."""
        return self.brought(partial(joined, member))

    def _moved_factors(
        self, of_index: Callable[[Array], Array], of_rows: Callable[[Array], Array]
    ) -> dict[str, FactorArrays]:
        def moved(index: Array | None) -> Array | None:
            return None if index is None else of_index(index)

        return {
            name: replace(
                arrays,
                nodes={argument: moved(index) for argument, index in arrays.nodes.items()},
                constants={
                    source: ConstantArray(of_rows(one.rows), moved(one.index))
                    for source, one in arrays.constants.items()
                },
            )
            for name, arrays in self.factors.items()
        }

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
        """See `SolveResult.active_bounds`."""
        return {
            name: limits.active(on_host(backend, moved.get(name, self.values[name])))
            for name, limits in self.bounds.items()
        }

    def moved(self, values: Mapping[str, Array], backend: Backend) -> dict[str, Any]:
        """Values of the kind, place and type that was given; types not in `values` stayed."""
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
