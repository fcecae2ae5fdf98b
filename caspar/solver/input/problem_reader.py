"""Checking what `Solver.solve` was given, weights and parameters of losses among it.

Input: the user's nested mapping. Output: a `Problem`, every name, type, shape, range and device
checked before any kernel could read out of bounds. Once for each solve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caspar.errors import InputError, meant
from caspar.frontend.factors.loss import PREFIX, LossParameter
from caspar.frontend.factors.terms import term_names, with_terms
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.markers import Table
from caspar.frontend.names import normalised_hint
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member
from caspar.solver.input.array_reader import ArrayReader, is_number, unblocked
from caspar.solver.input.constraints import NOTHING, Constraints, read_constraints
from caspar.solver.input.parted_array import GivenParts
from caspar.solver.input.parts import (
    PartReaders,
    checked_parts,
    is_in_parts,
    joined_factor,
    joined_parts,
)
from caspar.solver.input.problem import (
    ConstantArray,
    FactorArrays,
    Problem,
    no_mapping,
    with_bare_factors,
)


def read_problem(
    arrays: Mapping[str, Any],
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    backend: Backend,
    precision: Precision,
    *,
    check_values: bool = True,
    constraints: Constraints = NOTHING,
    members: Sequence[Member] = (),
) -> Problem:
    """Check the user's arrays, where they are.

    `arrays`: node type name -> values; factor name -> argument name -> indices or values. Values
    may be blocked arrays, indices `SharedIndices`; both lists of parts, which stay where they are
    if there are `members`, and else are put together.
    """
    reader = ArrayReader(backend, precision, check_values)
    parts = PartReaders(members, precision, check_values) if len(members) > 0 else None
    by_name = _Reader(reader, parts)
    expected = [node.name for node in nodes] + [factor.name for factor in factors]
    arrays = with_bare_factors(arrays, factors)
    _check_names("arrays", "node types and factors", arrays, expected)
    given = {node.name: by_name.given_values(node, arrays[node.name]) for node in nodes}
    values = {node.name: by_name.node_values(node, given[node.name]) for node in nodes}
    counts = {name: int(array.shape[0]) for name, array in values.items()}
    checked = {
        factor.name: by_name.factor(factor, arrays[factor.name], counts) for factor in factors
    }
    dtypes = {
        name: reader.dtype(array.parts[0] if isinstance(array, GivenParts) else array)
        for name, array in given.items()
    }
    found = read_constraints(constraints, nodes, values, dtypes, reader)
    names = tuple(by_name.in_parts)
    return Problem(found.values, given, dtypes, checked, found.free, found.bounds, names)


def read_factor(
    factor: TracedFactor, given: Any, counts: Mapping[str, int], reader: ArrayReader
) -> FactorArrays:
    """Check the user's arrays of one factor."""
    return _Reader(reader, None).factor(factor, given, counts)


def _check_names(
    where: str, what: str, given: Any, expected: Sequence[str], optional: Sequence[str] = ()
) -> None:
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {no_mapping(given, what, expected)}")
    known = (*expected, *optional)
    unknown = [str(name) for name in given if name not in known]
    missing = [name for name in expected if name not in given]
    if not unknown and not missing:
        return
    problems = []
    for name in unknown:
        hint = normalised_hint(name, expected) or meant(name, missing or known)
        problems.append(f"unknown name {name!r}{hint}")
    problems += [f"{name!r} is missing" for name in missing]
    raise InputError(f"{where}: {'; '.join(problems)}; expected {what}: {', '.join(expected)}")


class _Reader:
    def __init__(self, arrays: ArrayReader, parts: PartReaders | None) -> None:
        self._arrays = arrays
        self._parts = parts
        self.in_parts: list[str] = []

    def given_values(self, node: NodeType, given: Any) -> Any:
        """Return the user's values of a node type: blocked as rows, parts as `GivenParts`."""
        if not is_in_parts(given, node.storage_dim):
            return unblocked(given)
        self.in_parts.append(node.name)
        return GivenParts(checked_parts(f"node type {node.name}", given))

    def node_values(self, node: NodeType, given: Any) -> Array:
        """(n, storage_dim) values of a node type."""
        if isinstance(given, GivenParts):
            where = f"node type {node.name}"
            if self._parts is not None:
                return self._parts.node(where, node, given.parts)
            given = joined_parts(where, given.parts, self._arrays)
        return self._arrays.of_node(node, given)

    def factor(self, factor: TracedFactor, given: Any, counts: Mapping[str, int]) -> FactorArrays:
        """Indices and constants of a factor, in parts if it was given so and they stay."""
        where = f"factor {factor.name}"
        if not isinstance(given, Mapping):
            return self.factor_arrays(factor, given, counts, where)

        def read(reader: ArrayReader, part: Mapping[str, Any], label: str) -> FactorArrays:
            return _Reader(reader, None).factor_arrays(factor, part, counts, label)

        found = None if self._parts is None else self._parts.factor(factor, given, read)
        if found is not None:
            self.in_parts.append(factor.name)
            return found
        whole = joined_factor(factor, given, self._arrays)
        if any(whole[name] is not given[name] for name in given):
            self.in_parts.append(factor.name)
        return self.factor_arrays(factor, whole, counts, where)

    def factor_arrays(
        self, factor: TracedFactor, given: Any, counts: Mapping[str, int], where: str
    ) -> FactorArrays:
        """Indices and constants of a factor, or of a part of one, which `where` names."""
        by_source = {argument.source: argument for argument in factor.arguments}
        expected = factor.required
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
        if argument.table is not None:
            found = self._tables(where, argument, argument.table, given)
            if found.index is not None:
                lengths[argument.source] = int(found.index.shape[0])
            return found
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

    def _tables(
        self, where: str, argument: Argument, table: type[Table], given: Any
    ) -> ConstantArray:
        """Tables, one after the other: an index then says where the instance's begins."""
        if argument.kind is ArgumentKind.CONST_UNIQUE:
            memory = self._arrays.tables(where, table, given)
            if len(memory) != 1:
                raise InputError(
                    f"{where}: {len(memory)} tables; ConstUnique is one for all instances, use "
                    "ConstIndexed for several"
                )
            return ConstantArray(memory.reshape(-1, 1), None)
        _check_names(where, "entries", given, ["values", "index"])
        memory = self._arrays.tables(f"{where}, values", table, given["values"])
        num_tables, length = memory.shape
        index = self._arrays.index(f"{where}, index", given["index"], num_tables, "values")
        return ConstantArray(memory.reshape(-1, 1), index * np.int32(length))

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


def given_factors(factors: Sequence[TracedFactor], problem: Problem) -> list[TracedFactor]:
    """Factors as their weights and the parameters of their losses are given."""
    return [with_terms(factor, problem.factors[factor.name].by_instance) for factor in factors]


__all__ = ["Problem", "given_factors", "read_problem"]
"""The names that solves and estimates need."""


class TermReader:
    """Reads what users pass of one factor besides its arguments."""

    def __init__(self, arrays: ArrayReader, factor: TracedFactor, where: str) -> None:
        self._arrays = arrays
        self._where = where
        self._names = term_names(factor)
        self._loss = factor.loss
        self._weight: Array | None = None
        self._num_ignored = 0
        self.by_instance: tuple[str, ...] = ()

    def check_names(self, given: Any) -> None:
        """Say of a name that belongs to a loss why it means nothing here."""
        if not isinstance(given, Mapping):
            return
        for name in given:
            if not str(name).startswith(PREFIX) or name in self._names:
                continue
            if self._loss is None:
                raise InputError(
                    f"{self._where}: {name!r} is given, but the factor has no loss; write "
                    "@caspar.factor(loss=...), or factor.with_loss(...), or leave it out"
                )
            known = ", ".join(one.source for one in self._loss.parameters)
            raise InputError(
                f"{self._where}: {name!r} is given, but its loss {self._loss.name} has {known} only"
            )

    def read_weight(self, given: Mapping[str, Any]) -> Array | None:
        """Read the weights: (m,) booleans, True if an instance weighs nothing; None: all count."""
        if WEIGHT not in self._names or WEIGHT not in given:
            return None
        where = f"{self._where}, argument {WEIGHT}"
        if is_number(given[WEIGHT]):
            raise InputError(
                f"{where}: expected one weight for each instance, an array of shape (m,), got the "
                f"number {given[WEIGHT]!r}"
            )
        self._weight = rows = self._arrays.rows(where, given[WEIGHT], 1)
        if rows.shape[0] == 0:
            return None
        if float(rows.min()) < 0.0:
            raise InputError(f"{where}: {_first(rows, rows < 0.0)}; weights are 0 or more")
        ignored = rows[:, 0] == 0.0
        self._num_ignored = int(ignored.sum())
        return ignored if self._num_ignored > 0 else None

    def read(self, given: Mapping[str, Any], count: int) -> dict[str, Array]:
        """Rows of everything, by name: (count, 1), or (1, 1) of one number for all."""
        read: dict[str, Array] = {}
        if self._weight is not None:
            self._check_length(WEIGHT, self._weight, count)
            read[WEIGHT] = self._weight
        for parameter in () if self._loss is None else self._loss.parameters:
            read[parameter.source] = self._parameter(parameter, given, count)
        self.by_instance = tuple(
            name
            for name, rows in read.items()
            if name == WEIGHT or not is_number(given.get(name, 1.0))
        )
        return read

    def num_counted(self, count: int) -> int:
        """Instances whose weight is not zero."""
        return count - self._num_ignored

    def _parameter(self, parameter: LossParameter, given: Mapping[str, Any], count: int) -> Array:
        name = parameter.source
        where = f"{self._where}, argument {name}"
        found = given.get(name, parameter.default)
        if found is None:
            raise InputError(
                f"{self._where}: {name!r} is missing; its loss needs a number, or one for each "
                "instance"
            )
        if is_number(found):
            # beside arrays on a device too
            rows = self._arrays.number(where, found)
        else:
            rows = self._arrays.rows(where, found, 1)
            self._check_length(name, rows, count)
        if parameter.is_positive and rows.shape[0] > 0 and not float(rows.min()) > 0.0:
            raise InputError(f"{where}: {_first(rows, rows <= 0.0)}; it must be greater than 0")
        return rows

    def _check_length(self, name: str, rows: Array, count: int) -> None:
        if int(rows.shape[0]) != count:
            also = "" if name == WEIGHT else "a number, or "
            raise InputError(
                f"{self._where}, argument {name}: has {int(rows.shape[0])} entries, but the factor "
                f"has {count} instances; pass {also}one for each instance"
            )


def _first(rows: Array, bad: Array) -> str:
    entry = int(bad[:, 0].argmax())
    number = float(rows[entry, 0])
    return f"entry {entry} is {number:g}" if len(rows) > 1 else f"it is {number:g}"
