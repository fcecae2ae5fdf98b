"""Users' arrays of a batch, checked: what `BatchSolver.solve` is given.

Input: node type name -> values, factor name -> arguments. Output: a `Batch`: the shape that the
kernel depends on, and what it is bound to. Once for each solve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from caspar.batch.arrays import VALUES, BatchArrays, Ragged, Rows
from caspar.batch.generate import parameters as names
from caspar.batch.generate.programs import constant_name
from caspar.batch.generate.shape import BatchShape, Instances, ProblemFactor, batch_shape
from caspar.errors import InputError, meant
from caspar.frontend.factors.loss import LossParameter
from caspar.frontend.factors.terms import term_names, with_terms
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.markers import Table
from caspar.memory.array import Array
from caspar.solver.input.array_reader import ArrayReader
from caspar.solver.input.constraints import Constraints, NodeBounds, read_constraints
from caspar.solver.input.problem import no_mapping, with_bare_factors


@dataclass(frozen=True)
class Batch:
    """Checked arrays of a batch.

    Attributes:
        starts: By node type, (P * count, storage_dim) start values.
        dtypes: By node type, the floating type its values go back in.
        free: By masked node type, (P * count, tangent_dim) numbers, 1 where a component moves.
        bounds: By node type, those of all nodes.
        arrays: By the kernel's argument, what it is bound to and its stride.
        instances: By the factor's number, instances of each problem where they are equal.
        mean_instances: Of all factors in a problem, on average.
        num_residuals: (P,) int64 rows of residuals that count, NumPy's or of the device.
        may_be_empty: Whether a problem may have none.
    """

    num_problems: int
    shape: BatchShape
    starts: Mapping[str, Array]
    dtypes: Mapping[str, Any]
    free: Mapping[str, Array]
    bounds: Mapping[str, NodeBounds]
    arrays: Mapping[str, tuple[Array, int]]
    instances: Mapping[int, int]
    mean_instances: float
    num_residuals: Array
    may_be_empty: bool


class Terms:
    """Factors as their weights and the parameters of their losses are given.

    Each is made once, as the text that determines it takes milliseconds.
    """

    def __init__(self, factors: Sequence[TracedFactor]) -> None:
        self._factors = factors
        self._made: dict[tuple[int, tuple[str, ...]], TracedFactor] = {}

    def of(self, number: int, by_instance: tuple[str, ...]) -> TracedFactor:
        """The factor of a number, with those of its terms one for each instance that are named."""
        key = (number, by_instance)
        if key not in self._made:
            self._made[key] = with_terms(self._factors[number], by_instance)
        return self._made[key]


def read_batch(
    arrays: Mapping[str, Any],
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    reader: ArrayReader,
    fixed: Mapping[str, Any] | None,
    bounds: Mapping[str, Any] | None,
    terms: Terms,
    *,
    check: bool,
) -> Batch:
    """Check the arrays of a batch; `check`: look at indices and unit lengths.

    Raises:
        InputError: Names the factor or node type, the argument, what is wrong, what is allowed.
    """
    expected = [*(node.name for node in nodes), *(factor.name for factor in factors)]
    arrays = with_bare_factors(arrays, factors)
    _check_names("arrays", arrays, expected)
    one_by_one = BatchArrays(reader, check=check)
    starts: dict[str, Array] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        starts[node.name], counts[node.name] = one_by_one.nodes(
            f"node type {node.name}", arrays[node.name], node.storage_dim, node.unit_ranges
        )
    dtypes = {node.name: reader.dtype(arrays[node.name]) for node in nodes}
    found = read_constraints(Constraints(fixed, bounds), nodes, starts, dtypes, reader)
    read = [
        _FactorReader(place, factor, one_by_one, counts, terms).read(arrays[factor.name])
        for place, factor in enumerate(factors)
    ]
    types = [
        (node, counts[node.name], node.name in found.free, node.name in found.bounds)
        for node in nodes
    ]
    total = sum(one.counted * len(one.factor.factor.residual) for one in read)
    return Batch(
        num_problems=one_by_one.num_problems,
        shape=batch_shape(types, [one.factor for one in read], reader.types.values),
        starts=found.values,
        dtypes=dtypes,
        free=found.free,
        bounds=found.bounds,
        arrays={name: array for one in read for name, array in one.arrays.items()},
        instances={place: one.length for place, one in enumerate(read) if one.length is not None},
        mean_instances=sum(one.mean_length for one in read),
        num_residuals=one_by_one.xp.zeros(one_by_one.num_problems, dtype=np.int64) + total,
        may_be_empty=not isinstance(total, int) or total == 0,
    )


@dataclass(frozen=True)
class _ReadFactor:
    """A factor with the arrays that were read for it.

    Attributes:
        length: Instances in each problem, if all have as many.
        mean_length: Instances in a problem, on average.
        counted: Instances that count, in each problem, or (P,).
    """

    factor: ProblemFactor
    arrays: dict[str, tuple[Array, int]]
    length: int | None
    mean_length: float
    counted: Any


class _FactorReader:
    """Reads the arrays of one factor."""

    def __init__(
        self,
        place: int,
        factor: TracedFactor,
        arrays: BatchArrays,
        counts: Mapping[str, int],
        terms: Terms,
    ) -> None:
        self._place = place
        self._factor = factor
        self._arrays = arrays
        self._counts = counts
        self._terms = terms
        self._where = f"factor {factor.name}"
        self._lengths: dict[str, int] = {}
        self._rows: dict[str, Rows] = {}
        self._once: dict[str, Rows] = {}

    def read(self, given: Any) -> _ReadFactor:
        """Everything of the factor."""
        self._check_arguments(given)
        for argument in self._factor.arguments:
            self._read_argument(argument, given)
        by_instance = self._read_terms(given)
        traced = self._terms.of(self._place, tuple(by_instance))
        ragged = self._ragged()
        instances = self._instances(ragged)
        arrays = {}
        for name, rows in {**self._rows, **self._once}.items():
            source = name.removesuffix(_INDEX)
            argument = next(one for one in traced.inputs if one.source == source)
            array = rows.rows
            if name in self._rows and ragged is not None and ragged.order is not None:
                array = array[ragged.order]
            bound_as = constant_name(self._place, argument)
            bound_as = names.index_name(bound_as) if name.endswith(_INDEX) else bound_as
            arrays[bound_as] = (array, rows.stride)
        length = None
        if ragged is not None:
            arrays[names.factor_name(self._place)] = (ragged.starts, 0)
        elif instances is Instances.EQUAL:
            length = next(iter(self._lengths.values()))
        mean = 1.0 if length is None else float(length)
        if ragged is not None:
            rows = next(iter(self._rows.values())).rows
            mean = rows.shape[0] / max(self._arrays.num_problems, 1)
        counted = self._counted(ragged, length)
        return _ReadFactor(ProblemFactor(traced, instances), arrays, length, mean, counted)

    def _check_arguments(self, given: Any) -> None:
        needed, single = [], []
        for argument in self._factor.arguments:
            kind = argument.kind
            if kind is ArgumentKind.NODE_SHARED and self._count(argument) == 1:
                single.append(argument.source)
            elif kind is ArgumentKind.NODE_UNIQUE and self._count(argument) != 1:
                raise InputError(
                    f"{self._where}, argument {argument.source}: TunableUnique needs one "
                    f"{argument.node_type.name} in each problem, got {self._count(argument)}; use "
                    "TunableShared for several"
                )
            elif kind not in (ArgumentKind.NODE_UNIQUE, ArgumentKind.NODE_PAIR):
                needed.append(argument.source)
        for name in single:
            if isinstance(given, Mapping) and name in given:
                raise InputError(
                    f"{self._where}, argument {name}: each problem has one such node, so there is "
                    "no index to pass; leave it out, or pass (P, n, dim) values for n nodes"
                )
        _check_names(self._where, given, needed, term_names(self._factor))

    def _count(self, argument: Argument) -> int:
        return self._counts[argument.node_type.name]

    def _read_argument(self, argument: Argument, given: Mapping[str, Any]) -> None:
        name = argument.source
        where = f"{self._where}, argument {name}"
        if argument.kind is ArgumentKind.NODE_PAIR:
            self._lengths[f"{name} (pairs)"] = self._count(argument) - 1
        elif argument.kind is ArgumentKind.NODE_SHARED:
            if self._count(argument) > 1:
                count = self._count(argument)
                self._add(name, self._arrays.index(where, given[name], count, "node"))
        elif argument.table is not None:
            self._read_tables(where, argument, argument.table, given[name])
        elif argument.kind is ArgumentKind.CONST_UNIQUE:
            self._once[name] = self._arrays.one_each(
                where,
                given[name],
                argument.storage_dim,
                argument.unit_ranges,
                argument.matrix_shape,
            )
        elif argument.kind is ArgumentKind.CONST_SEQUENTIAL:
            rows = self._arrays.instances(
                where,
                given[name],
                argument.storage_dim,
                argument.unit_ranges,
                argument.matrix_shape,
            )
            self._add(name, rows)
        elif argument.kind is ArgumentKind.CONST_INDEXED:
            self._read_indexed(where, argument, given[name])

    def _read_indexed(self, where: str, argument: Argument, given: Any) -> None:
        """Rows of a problem, or of all of them, and which of them each instance reads."""
        _check_names(where, given, [VALUES, "index"])
        rows = self._arrays.instances(
            f"{where}, {VALUES}",
            given[VALUES],
            argument.storage_dim,
            argument.unit_ranges,
            argument.matrix_shape,
        )
        if rows.problem is not None:
            raise InputError(
                f"{where}, {VALUES}: rows of problems of different lengths; expected (P, n, "
                f"{argument.storage_dim}), or (1, n, {argument.storage_dim}): the same for all. "
                "Only the index may be ragged"
            )
        self._once[argument.source] = rows
        index = self._arrays.index(f"{where}, index", given["index"], rows.length, "row")
        self._add(f"{argument.source}{_INDEX}", index)

    def _read_tables(self, where: str, argument: Argument, table: type[Table], given: Any) -> None:
        """Tables of problems, or a pool of them, and where in it that of each instance begins."""
        if argument.kind is ArgumentKind.CONST_UNIQUE:
            self._once[argument.source] = self._arrays.tables(where, table, given, is_pool=False)
            return
        _check_names(where, given, [VALUES, "index"])
        pool = self._arrays.tables(f"{where}, {VALUES}", table, given[VALUES], is_pool=True)
        self._once[argument.source] = pool
        index = self._arrays.index(f"{where}, index", given["index"], pool.length, "table")
        numbers = int(pool.rows.shape[0]) // pool.length
        starts = replace(index, rows=index.rows * np.int32(numbers))
        self._add(f"{argument.source}{_INDEX}", starts)

    def _add(self, name: str, rows: Rows) -> None:
        self._rows[name] = rows
        if rows.problem is None:
            self._lengths[name] = rows.length

    def _read_terms(self, given: Mapping[str, Any]) -> list[str]:
        by_instance = []
        parameters = () if self._factor.loss is None else self._factor.loss.parameters
        if WEIGHT in term_names(self._factor) and WEIGHT in given:
            by_instance.append(WEIGHT)
            where = f"{self._where}, argument {WEIGHT}"
            rows = self._arrays.instances(where, given[WEIGHT], 1)
            if rows.rows.shape[0] > 0 and not float(rows.rows.min()) >= 0.0:
                raise InputError(f"{where}: a weight is negative or NaN; weights are 0 or more")
            self._add(WEIGHT, rows)
        for parameter in parameters:
            if self._read_parameter(parameter, given):
                by_instance.append(parameter.source)
        return by_instance

    def _read_parameter(self, parameter: LossParameter, given: Mapping[str, Any]) -> bool:
        """Return whether a parameter of the loss has a number for each instance."""
        name = parameter.source
        where = f"{self._where}, argument {name}"
        found = given.get(name, parameter.default)
        if found is None:
            raise InputError(
                f"{self._where}: {name!r} is missing; its loss needs a number, or one for each "
                "instance"
            )
        is_number = isinstance(found, Real) or getattr(found, "ndim", None) == 0
        if is_number:
            number = np.full((1, 1), float(found), self._arrays.dtype)
            rows = Rows(number, 0, 1)
            self._once[name] = rows
        else:
            rows = self._arrays.instances(where, found, 1)
            self._add(name, rows)
        if parameter.is_positive and rows.rows.shape[0] > 0 and not float(rows.rows.min()) > 0.0:
            raise InputError(f"{where}: a number is 0, negative or NaN; it must be greater than 0")
        return not is_number

    def _ragged(self) -> Ragged | None:
        """Return how ragged arguments are shared out; all of them alike."""
        ragged = {
            name: rows.problem for name, rows in self._rows.items() if rows.problem is not None
        }
        if len(ragged) == 0:
            return None
        if len(self._lengths) > 0:
            equal = ", ".join(self._lengths)
            raise InputError(
                f"{self._where}: {', '.join(ragged)} is ragged, but {equal} is not; pass all "
                "arguments with a value for each instance in the same way"
            )
        (first, problem), *others = ragged.items()
        for name, other in others:
            is_same = other is problem
            if not is_same and (other.shape != problem.shape or not bool((other == problem).all())):
                raise InputError(
                    f"{self._where}, argument {name}: its 'problem' differs from that of {first}; "
                    "rows of the same place belong to the same instance"
                )
        return self._arrays.ragged(f"{self._where}, argument {first}, problem", problem)

    def _instances(self, ragged: Ragged | None) -> Instances:
        if ragged is not None:
            return Instances.RAGGED
        if len(self._lengths) == 0:
            return Instances.ONE
        if len(set(self._lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in self._lengths.items())
            raise InputError(
                f"{self._where}: arguments differ in the number of instances: {listed}; all must "
                "be equal"
            )
        return Instances.EQUAL

    def _counted(self, ragged: Ragged | None, length: int | None) -> Any:
        """Instances of weight above 0."""
        weight = self._rows.get(WEIGHT)
        if weight is None:
            return ragged.counts if ragged is not None else 1 if length is None else length
        counts = (weight.rows[:, 0] > 0.0).astype(np.int64)
        if ragged is None:
            by_problem = counts.reshape(-1, weight.length).sum(axis=1)
            return int(by_problem[0]) if weight.stride == 0 else by_problem
        xp, problem = self._arrays.xp, weight.problem
        return xp.bincount(problem, weights=counts, minlength=ragged.counts.shape[0]).astype(int)


_INDEX = " (index)"
"""Behind the name of an argument: which row each instance reads."""


def _check_names(
    where: str, given: Any, needed: Sequence[str], optional: Sequence[str] = ()
) -> None:
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {no_mapping(given, 'names', needed)}")
    known = (*needed, *optional)
    problems = []
    for name in given:
        if name not in known:
            problems.append(f"unknown name {str(name)!r}{meant(name, known)}")
    problems += [f"{name!r} is missing" for name in needed if name not in given]
    if problems:
        raise InputError(f"{where}: {'; '.join(problems)}; expected {', '.join(needed)}")
