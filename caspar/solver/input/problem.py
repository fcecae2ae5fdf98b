"""Checking what `Solver.solve` was given.

Input: the user's nested mapping. Output: a `Problem`, every name, type, shape, range and device
checked before any kernel could read out of bounds. Once for each solve.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.terms import term_names, with_terms
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.names import normalised_hint
from caspar.frontend.precision import Types
from caspar.frontend.symbolic.field_types import storage_layout
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import HOST, Moved, give_back, location
from caspar.runtime.backend import Backend
from caspar.solver.input.array_reader import ArrayReader, unblocked
from caspar.solver.input.bounds import NodeBounds
from caspar.solver.input.constraints import NOTHING, Constraints, read_constraints
from caspar.solver.input.fixed import num_held
from caspar.solver.input.term_reader import TermReader


@dataclass(frozen=True)
class ConstantArray:
    """Values of a constant argument.

    Attributes:
        rows: (m, dim) floating values of the type of values; of narrow arguments of storage.
        index: (n,) int32 row of each factor; None where rows are sequential or unique.
    """

    rows: Array
    index: Array | None


@dataclass(frozen=True)
class FactorArrays:
    """Arrays of one factor, by argument name.

    Attributes:
        count: Instances; may be 0.
        nodes: (count,) int32 node of each instance; None for unique nodes.
        constants: Values of the constant arguments, of weights and of what a loss depends on.
        by_instance: Those of the last two that have one number for each instance.
        num_counted: Instances whose weight is not zero.
    """

    count: int
    nodes: Mapping[str, Array | None]
    constants: Mapping[str, ConstantArray]
    by_instance: tuple[str, ...]
    num_counted: int

    def larger_than(self, num_bytes: int) -> tuple[str, ...]:
        """Names of the constants that take more bytes."""
        found = self.constants.items()
        return tuple(name for name, one in found if int(one.rows.nbytes) > num_bytes)

    def narrowed(self, factor: TracedFactor, types: Types) -> "FactorArrays":
        """The same, with the constants of a factor that are narrow in the type of storage."""
        names = {one.source for one in factor.inputs if one.is_narrow}
        if len(names) == 0:
            return self
        constants = {
            name: replace(one, rows=one.rows.astype(types.storage.value, copy=False))
            if name in names
            else one
            for name, one in self.constants.items()
        }
        return replace(self, constants=constants)


@dataclass(frozen=True)
class Problem:
    """Checked arrays, where they were given: on the host, or on the backend's device.

    Attributes:
        values: For each node type's name its (n, storage_dim) values, of the type of values.
        given: For each node type's name what the user passed; of a blocked array its rows.
        dtypes: For each node type's name the floating type its values go back in.
        factors: For each factor's name its arrays.
        free: For each node type of which something is held, by name: (n, tangent_dim) numbers of
            the storage type, 1 for each component of the tangent that moves, else 0.
        bounds: For each node type that has bounds, by name; it is in `free` too.
    """

    values: Mapping[str, Array]
    given: Mapping[str, Any]
    dtypes: Mapping[str, Any]
    factors: Mapping[str, FactorArrays]
    free: Mapping[str, Array] = field(default_factory=dict)
    bounds: Mapping[str, NodeBounds] = field(default_factory=dict)

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

    def part(self, factors: Sequence[TracedFactor], nodes: Sequence[NodeType]) -> "Problem":
        """What belongs to some of the factors and node types."""
        return Problem(
            {node.name: self.values[node.name] for node in nodes},
            {node.name: self.given[node.name] for node in nodes},
            {node.name: self.dtypes[node.name] for node in nodes},
            {factor.name: self.factors[factor.name] for factor in factors},
            {node.name: self.free[node.name] for node in nodes if node.name in self.free},
            {node.name: self.bounds[node.name] for node in nodes if node.name in self.bounds},
        )

    def moved(self, values: Mapping[str, Array], backend: Backend) -> dict[str, Any]:
        """Values of the kind, place and floating type that was given.

        Args:
            values: For some node types their (n, storage_dim) values after a solve, on the
                backend's device; the others have not moved.
            backend: Where the solve ran.
        """
        returned = {}
        for name, given in self.given.items():
            start = self.values[name]
            end = values.get(name, start)
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
        arrays = list(self.values.values())
        for factor in self.factors.values():
            arrays += [index for index in factor.nodes.values() if index is not None]
            for constant in factor.constants.values():
                arrays += [constant.rows] + ([] if constant.index is None else [constant.index])
        kind = backend.xp.ndarray
        return sum(int(array.nbytes) for array in arrays if isinstance(array, kind))


def given_factors(factors: Sequence[TracedFactor], problem: Problem) -> list[TracedFactor]:
    """Factors as their weights and the parameters of their losses are given."""
    return [with_terms(factor, problem.factors[factor.name].by_instance) for factor in factors]


def read_problem(
    arrays: Mapping[str, Any],
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    backend: Backend,
    precision: Precision,
    *,
    check_values: bool = True,
    constraints: Constraints = NOTHING,
) -> Problem:
    """`check_problem` of arrays for a backend and a precision.

    Args:
        arrays: See there.
        factors: See there.
        nodes: See there.
        backend: Where the solve runs.
        precision: It determines the floating type of values.
        check_values: Also look for NaN, infinity and indices out of range.
        constraints: See there.
    """
    reader = ArrayReader(backend, precision, check_values)
    return check_problem(arrays, factors, nodes, reader, constraints)


def check_problem(
    arrays: Mapping[str, Any],
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    reader: ArrayReader,
    constraints: Constraints = NOTHING,
) -> Problem:
    """Check the user's arrays, where they are.

    Args:
        arrays: Node type name -> values; factor name -> argument name -> indices or values. Values
            may be blocked arrays, indices `SharedIndices`.
        factors: Traced factors.
        nodes: Their node types.
        reader: Reads single arrays.
        constraints: What is held, and bounds; see `Solver.solve`.

    Raises:
        InputError: Names the factor or node type, the argument, what is wrong, what is allowed.
    """
    by_name = _Reader(reader)
    expected = [node.name for node in nodes] + [factor.name for factor in factors]
    _check_names("arrays", "node types and factors", arrays, expected)
    given = {node.name: unblocked(arrays[node.name]) for node in nodes}
    values = {node.name: by_name.node_values(node, given[node.name]) for node in nodes}
    counts = {name: int(array.shape[0]) for name, array in values.items()}
    checked = {
        factor.name: by_name.factor_arrays(factor, arrays[factor.name], counts)
        for factor in factors
    }
    dtypes = {name: reader.dtype(array) for name, array in given.items()}
    found = read_constraints(constraints, nodes, values, dtypes, reader)
    return Problem(found.values, given, dtypes, checked, found.free, found.bounds)


def _check_names(
    where: str, what: str, given: Any, expected: Sequence[str], optional: Sequence[str] = ()
) -> None:
    if not isinstance(given, Mapping):
        raise InputError(
            f"{where}: expected a mapping of {what} ({', '.join(expected)}), "
            f"got {type(given).__name__}"
        )
    known = (*expected, *optional)
    unknown = [str(name) for name in given if name not in known]
    missing = [name for name in expected if name not in given]
    if not unknown and not missing:
        return
    problems = []
    for name in unknown:
        close = difflib.get_close_matches(name, missing or known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        hint = normalised_hint(name, expected) or hint
        problems.append(f"unknown name {name!r}{hint}")
    problems += [f"{name!r} is missing" for name in missing]
    raise InputError(f"{where}: {'; '.join(problems)}; expected {what}: {', '.join(expected)}")


class _Reader:
    """Reads node types and factors."""

    def __init__(self, arrays: ArrayReader) -> None:
        self._arrays = arrays

    def node_values(self, node: NodeType, given: Any) -> Array:
        """(n, storage_dim) values of a node type."""
        where, layout = f"node type {node.name}", storage_layout(node.python_type)
        if isinstance(given, Mapping):
            columns = f"; put its fields side by side: {layout}" if layout else ""
            raise InputError(
                f"{where}: expected an (n, {node.storage_dim}) array, got a mapping{columns}"
            )
        return self._arrays.rows(where, given, node.storage_dim, node.unit_ranges, layout=layout)

    def factor_arrays(
        self, factor: TracedFactor, given: Any, counts: Mapping[str, int]
    ) -> FactorArrays:
        """Indices and constants of a factor."""
        where = f"factor {factor.name}"
        by_source = {argument.source: argument for argument in factor.arguments}
        expected = [
            source
            for source, argument in by_source.items()
            if argument.kind not in (ArgumentKind.NODE_PAIR, ArgumentKind.NODE_UNIQUE)
        ]
        terms = TermReader(self._arrays, factor, where)
        terms.check_names(given)
        _check_names(where, "arguments", given, expected, term_names(factor))
        ignored = terms.read_weight(given)
        lengths: dict[str, int] = {}
        indices: dict[str, Array] = {}
        constants: dict[str, ConstantArray] = {}
        for source in expected:
            argument = by_source[source]
            inner = f"{where}, argument {source}"
            if argument.kind is ArgumentKind.NODE_SHARED:
                node = argument.node_type.name
                indices[source] = self._arrays.index(inner, given[source], counts[node], node)
                lengths[source] = int(indices[source].shape[0])
            else:
                constants[source] = self._constant(inner, argument, given[source], lengths, ignored)
        count = _count(where, factor, lengths, counts)
        nodes = {
            argument.name: self._node_index(argument, indices, count) for argument in factor.nodes
        }
        read = terms.read(given, count)
        constants |= {name: ConstantArray(rows, None) for name, rows in read.items()}
        return FactorArrays(count, nodes, constants, terms.by_instance, terms.num_counted(count))

    def _node_index(
        self, argument: Argument, indices: Mapping[str, Array], count: int
    ) -> Array | None:
        if argument.kind is ArgumentKind.NODE_UNIQUE:
            return None
        if argument.kind is ArgumentKind.NODE_PAIR:
            first = 1 if argument.successor else 0
            return np.arange(first, first + count, dtype=np.int32)
        return indices[argument.source]

    def _constant(
        self,
        where: str,
        argument: Argument,
        given: Any,
        lengths: dict[str, int],
        ignored: Array | None,
    ) -> ConstantArray:
        if argument.kind is ArgumentKind.CONST_INDEXED:
            if isinstance(given, list | tuple) and len(given) == 0:
                given = {"values": given, "index": given}
            _check_names(where, "entries", given, ["values", "index"])
            rows = self._rows(f"{where}, values", argument, given["values"])
            index = self._arrays.index(
                f"{where}, index", given["index"], int(rows.shape[0]), "values"
            )
            lengths[argument.source] = int(index.shape[0])
            return ConstantArray(rows, index)
        if argument.kind is ArgumentKind.CONST_UNIQUE:
            rows = self._rows(where, argument, given)
            num_rows = int(rows.shape[0])
            if num_rows != 1:
                advice = "; use ConstSequential for one each" if num_rows > 1 else ""
                raise InputError(
                    f"{where}: ConstUnique is one value of {argument.storage_dim} scalars for all "
                    f"factors, got {num_rows} rows{advice}"
                )
            return ConstantArray(rows, None)
        rows = self._rows(where, argument, given, ignored)
        lengths[argument.source] = int(rows.shape[0])
        return ConstantArray(rows, None)

    def _rows(
        self, where: str, argument: Argument, given: Any, ignored: Array | None = None
    ) -> Array:
        dim, units = argument.storage_dim, argument.unit_ranges
        is_one = argument.kind is ArgumentKind.CONST_UNIQUE
        return self._arrays.rows(
            where, given, dim, units, argument.matrix_shape, is_one=is_one, ignored=ignored
        )


def _count(
    where: str, factor: TracedFactor, lengths: Mapping[str, int], counts: Mapping[str, int]
) -> int:
    """Instances of a factor: all its arguments agree."""
    agreed = dict(lengths)
    for argument in factor.nodes:
        size = counts[argument.node_type.name]
        if argument.kind is ArgumentKind.NODE_PAIR:
            agreed[f"{argument.source} (pairs)"] = max(size - 1, 0)
        elif argument.kind is ArgumentKind.NODE_UNIQUE and size != 1:
            advice = "; use TunableShared for several" if size > 1 else ""
            raise InputError(
                f"{where}, argument {argument.source}: TunableUnique needs exactly 1 instance of "
                f"{argument.node_type.name}, got {size}{advice}"
            )
    if len(set(agreed.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in agreed.items())
        raise InputError(f"{where}: arguments differ in length: {listed}; all must be equal")
    return next(iter(agreed.values()), 1)
