"""Tracing: run a residual function on symbols.

Input: a `Factor`. Output: a `TracedFactor`, SymForce expressions of the residual over the storage
of its arguments. Once for each solver, a few milliseconds; derivatives come later and only when
no compiled plan is cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

from caspar.errors import FactorError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.loss import TracedLoss
from caspar.frontend.markers import (
    Const,
    ConstIndexed,
    ConstSequential,
    ConstShared,
    ConstUnique,
    Marker,
    Pair,
    Table,
    Tunable,
    TunablePair,
    TunableSequential,
    TunableShared,
    TunableUnique,
)
from caspar.frontend.names import VALUE, internal_name, part_name
from caspar.frontend.symbolic.epsilon import SYMBOL, SymForceGrewError, with_symbolic_epsilon
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.field_types import (
    UnitRange,
    tangent_parts,
    unit_ranges,
    with_own_symbols,
)
from caspar.frontend.symbolic.lines import Lines
from caspar.frontend.symbolic.turned_vectors import TurnedVector, turned_vectors
from caspar.frontend.tracing.on_numbers import Comparison, PointArgument
from caspar.frontend.tracing.signature import (
    argument_annotations,
    argument_value,
    check_is_number,
    check_name,
    copied_value,
    marker_name,
    markers_in,
    matrix_shape,
    run_on_symbols,
)
from caspar.memory.access import Accessor

if TYPE_CHECKING:
    from caspar.frontend.grids import Grid
    from caspar.frontend.patches import Patch


def residual_rows(factor: Factor, residual: Any, lines: Lines) -> tuple[Any, ...]:
    """The rows that a factor's function returned, each of them a number, or a `FactorError`."""
    rows = column(factor, residual)
    for row in rows:
        check_is_number(factor, "the residual", row, lines)
    return rows


def column(factor: Factor, residual: Any) -> tuple[Any, ...]:
    """The rows of a column vector that a factor's function returned, or a `FactorError`."""
    if isinstance(residual, sf.Matrix) and residual.shape[1] == 1 and residual.shape[0] >= 1:
        return tuple(residual.to_flat_list())
    needed = "it must return a SymForce column vector such as sf.V2"
    hint = ""
    if residual is None:
        hint = "; is the return statement missing?"
    elif isinstance(residual, tuple | list):
        hint = "; write sf.Vector(...) or sf.V2(a, b) around its elements"
    elif isinstance(residual, int | float | sf.Expr):
        hint = "; wrap it as sf.V1(value)"
    shape = f" of shape {residual.shape}" if isinstance(residual, sf.Matrix) else ""
    raise FactorError(
        f"factor {factor.name} ({factor.location}) returned {type(residual).__name__}{shape}: "
        f"{needed}{hint}"
    )


WEIGHT = "weight"
"""Under which name weights are passed beside a factor's arguments."""


class ArgumentKind(Enum):
    """The mapping of an argument to instances."""

    NODE_SHARED = "TunableShared"
    NODE_UNIQUE = "TunableUnique"
    NODE_PAIR = "TunablePair"
    CONST_SEQUENTIAL = "ConstSequential"
    CONST_INDEXED = "ConstIndexed"
    CONST_UNIQUE = "ConstUnique"


_KINDS: dict[type[Marker], ArgumentKind] = {
    TunableShared: ArgumentKind.NODE_SHARED,
    TunableUnique: ArgumentKind.NODE_UNIQUE,
    TunablePair: ArgumentKind.NODE_PAIR,
    TunableSequential: ArgumentKind.CONST_SEQUENTIAL,
    ConstSequential: ArgumentKind.CONST_SEQUENTIAL,
    ConstIndexed: ArgumentKind.CONST_INDEXED,
    ConstUnique: ArgumentKind.CONST_UNIQUE,
}


@dataclass(frozen=True)
class NodeType:
    """A type the solver moves.

    Attributes:
        name: The class's name; arrays are passed under it.
        python_type: The class.
        storage_dim: Scalars of an instance in memory.
        tangent_dim: Degrees of freedom.
        unit_ranges: Its parts of unit length, such as quaternions.
        tangent_parts: Ranges of the tangent whose scalars are in one unit.
    """

    name: str
    python_type: type
    storage_dim: int
    tangent_dim: int
    unit_ranges: tuple[UnitRange, ...] = ()
    tangent_parts: tuple[range, ...] = ()

    def retracted_storage(self, prefix: str) -> tuple[list[Any], list[Any], list[Any]]:
        """Symbols of storage and of tangent, and the storage after that step, as expressions."""
        steps = [f"{prefix}_step{number}" for number in range(self.tangent_dim)]
        symbolic = StorageOps.symbolic(self.python_type, prefix)
        symbolic = with_own_symbols(symbolic, prefix, {*steps})
        step = list(map(sf.Symbol, steps))
        moved = with_symbolic_epsilon(LieGroupOps.retract, symbolic, step, SYMBOL)
        return list(StorageOps.to_storage(symbolic)), step, list(StorageOps.to_storage(moved))

    @cached_property
    def shifted_places(self) -> dict[int, int]:
        """Components of the tangent that are added to one number of the storage, with its place.

        Those of vectors, scalars and positions; not those of rotations.
        """
        storage, step, moved = self.retracted_storage("node")
        places = {}
        for component, length in enumerate(step):
            by_it = [place for place, entry in enumerate(moved) if entry.has(length)]
            if len(by_it) == 1 and moved[by_it[0]] == storage[by_it[0]] + length:
                places[component] = by_it[0]
        return places

    @cached_property
    def retraction_key(self) -> str:
        """Text that determines the retraction."""
        storage, step, moved = self.retracted_storage("node")
        return f"{storage} {step} {expression_key(moved)}"


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: a pair of the user's signature counts as two.

    Attributes:
        name: Unique within the factor; ASCII: see `caspar.frontend.names`.
        source: The argument's name in the user's signature.
        kind: How factors map to instances.
        successor: The second half of a pair: node i + 1.
        storage_dim: Scalars of an instance.
        unit_ranges: Its parts of unit length, such as quaternions.
        node: The node type; None for constants.
        symbolic: A value of symbols; not the one that the function gets, which may write into it.
        is_narrow: Of constants: whether their array is in the type of storage, if that is another
            one than that of values.
        own_bounds: Of an unknown that each instance owns, until it is eliminated: its bounds.
        patch: Of a part of a patch of a table: the value that the function gets. `source` is then
            the argument's name, a dot and the part.
    """

    name: str
    source: str
    kind: ArgumentKind
    successor: bool
    storage_dim: int
    unit_ranges: tuple[UnitRange, ...]
    node: NodeType | None
    symbolic: Any
    is_narrow: bool = False
    own_bounds: tuple[float, float] | None = None
    patch: "Patch | None" = field(default=None, repr=False, compare=False)

    @property
    def written(self) -> str:
        """The argument in the user's signature."""
        return self.source.partition(".")[0]

    @property
    def node_type(self) -> NodeType:
        """The type of its nodes, of one that is no constant."""
        assert self.node is not None
        return self.node

    @property
    def table(self) -> type[Table] | None:
        """The class of tables that it holds; None: it holds values."""
        return type(self.symbolic) if isinstance(self.symbolic, Table) else None

    @property
    def is_half(self) -> bool:
        """Return whether it holds tables in float16, as its bits."""
        return self.table is not None and self.table.is_half

    def part(self, part: str) -> str:
        """Return the kernels' name for a part of it, such as the gradient of a node."""
        return part_name(self.name, part)

    @property
    def value_name(self) -> str:
        """Name of its storage in kernels."""
        return self.part(VALUE)

    @property
    def tangent_dim(self) -> int:
        """Scalars of a step of such a node."""
        return self.node_type.tangent_dim

    @cached_property
    def matrix_shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix with several columns; () of everything else."""
        return matrix_shape(self.symbolic)

    @property
    def symbols(self) -> list[Any]:
        """The symbols of its storage."""
        return list(StorageOps.to_storage(self.symbolic))

    @property
    def storage_by_tangent(self) -> Any:
        """d storage / d tangent at the symbolic value: (storage_dim, tangent_dim)."""
        return LieGroupOps.storage_D_tangent(self.symbolic, SYMBOL)

    @property
    def chart_key(self) -> str:
        """Text that determines `storage_by_tangent`; empty for constants."""
        return "" if self.node is None else expression_key(self.storage_by_tangent.to_flat_list())


@dataclass(frozen=True)
class TracedFactor:
    """A residual as expressions.

    Attributes:
        name: The factor's name.
        location: File and line of the function.
        arguments: In the order of the signature.
        residual: One expression for each row.
        lines: Which line of the function each sub-expression comes from.
        loss: What the squared residual costs; None: what it is.
        terms: Weight and parameters of the loss, as constant arguments.
        own: Unknowns that each instance owns, by name; one expression in the other arguments for
            each of their scalars. They are no arguments: the residual is that of their best values.
        looked_up: By argument that is a table of unknowns, the coordinates at which it is looked
            up, one place after the other.
        is_tie: Whether it is a constraint between few nodes of many: that makes no chain of them.
    """

    name: str
    location: str
    arguments: tuple[Argument, ...]
    residual: tuple[Any, ...]
    lines: Lines = field(repr=False, compare=False)
    loss: TracedLoss | None = None
    terms: tuple[Argument, ...] = ()
    own: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    looked_up: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    is_tie: bool = False

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Everything that is read for an instance: the arguments, then weight and loss data."""
        return (*self.arguments, *self.terms)

    @property
    def tables(self) -> tuple[Argument, ...]:
        """The arguments that hold tables."""
        return tuple(argument for argument in self.arguments if argument.table is not None)

    @cached_property
    def inside(self) -> tuple[Any, ...]:
        """Expressions that are 1. An instance for which one is 0 is left out: see `Border`."""
        if len(self.tables) == 0:
            return ()
        from caspar.frontend.symbolic.lookups import inside_tables

        return inside_tables(self.residual)

    @cached_property
    def patches(self) -> "dict[str, type[Grid]]":
        """The tables whose numbers are unknowns, by argument of the user's signature."""
        return {one.written: one.patch.grid for one in self.arguments if one.patch is not None}

    @property
    def is_plain(self) -> bool:
        """Return whether an instance costs half its squared residual: no loss, no weight."""
        return self.loss is None and len(self.terms) == 0

    @property
    def is_weighted(self) -> bool:
        """Return whether each instance has a weight."""
        return any(term.source == WEIGHT for term in self.terms)

    @property
    def nodes(self) -> tuple[Argument, ...]:
        """The tunable arguments."""
        return tuple(argument for argument in self.arguments if argument.node is not None)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Arguments for which something must be passed, as the user named them."""
        by_itself = (ArgumentKind.NODE_UNIQUE, ArgumentKind.NODE_PAIR)
        names = {one.source: None for one in self.arguments if one.kind not in by_itself}
        return tuple(names)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """Tunable arguments, as the user named them, that the residual does not depend on."""
        used = self.symbols_used
        return tuple(node.source for node in self.nodes if used.isdisjoint(map(str, node.symbols)))

    @cached_property
    def symbols_used(self) -> frozenset[str]:
        """Names of the symbols that the residual depends on."""
        symbols = (sf.sympify(row).free_symbols for row in self.residual)
        return frozenset(str(one) for row in symbols for one in row)

    @cached_property
    def turned(self) -> tuple[TurnedVector, ...]:
        """Rotations whose derivatives are those by the vector that they turn."""
        return turned_vectors(self.arguments, self.residual, f"factor {self.name}")

    @cached_property
    def key(self) -> str:
        """Text that determines the generated kernels."""
        arguments = "; ".join(
            f"{argument.name} {argument.kind.value} {argument.successor} {argument.symbols}"
            f" {argument.chart_key}{' narrow' if argument.is_narrow else ''}"
            f"{' half' if argument.is_half else ''}"
            for argument in self.arguments
        )
        key = f"{self.name}({arguments}) = {expression_key(self.residual, self.lines)}"
        if self.is_plain:
            return key
        terms = ", ".join(
            f"{term.name} {term.kind.value}{' narrow' if term.is_narrow else ''}"
            for term in self.terms
        )
        return f"{key}, {terms}, {'' if self.loss is None else self.loss.key}"


def trace(factor: Factor) -> TracedFactor:
    """Run a factor's function on symbols.

    Raises a `FactorError` that names factor and argument if signature or return value are not what
    a factor needs.
    """
    arguments: list[Argument] = []
    call_values: dict[str, Any] = {}
    taken: set[str] = set()
    for name, annotation in argument_annotations(factor).items():
        made, value = _make_argument(factor, name, annotation, taken)
        arguments += made
        # a copy: the function may write into it
        call_values[name] = copied_value(value)
    if not any(argument.node is not None for argument in arguments):
        raise FactorError(
            f"factor {factor.name} has no tunable argument: mark at least one with TunableShared, "
            "TunableUnique or TunablePair, or there is nothing to solve for"
        )
    try:
        residual, lines = run_on_symbols(factor, call_values)
    except SymForceGrewError:
        return trace(factor)
    rows = residual_rows(factor, residual, lines)
    looked_up = tuple(
        (name, tuple(one for place in call_values[name].places for one in place))
        for name in dict.fromkeys(one.written for one in arguments if one.patch is not None)
    )
    return TracedFactor(
        factor.name, factor.location, tuple(arguments), rows, lines, looked_up=looked_up
    )


def _make_argument(
    factor: Factor, source: str, annotation: Any, taken: set[str]
) -> tuple[list[Argument], Any]:
    where = f"{factor.title}, argument {source}"
    name = internal_name(source)
    marker = _marker(where, annotation)
    kind = next(_KINDS[base] for base in type(marker).__mro__ if base in _KINDS)
    declared = get_args(annotation)[0]
    if kind is ArgumentKind.NODE_PAIR:
        if get_origin(declared) is not Pair:
            raise FactorError(f"{where}: TunablePair needs caspar.Pair[Type], got {declared!r}")
        element = get_args(declared)[0]
        halves = [
            _one_argument(
                factor,
                part_name(name, half),
                source,
                kind,
                half == "second",
                element,
                argument_value(factor, element, source, taken, half),
            )
            for half in ("first", "second")
        ]
        return halves, Pair(half.symbolic for half in halves)
    is_table = isinstance(declared, type) and issubclass(declared, Table)
    if is_table and kind is ArgumentKind.NODE_SHARED:
        return _parts_of_patch(factor, name, source, declared, taken)
    if is_table and kind not in (ArgumentKind.CONST_INDEXED, ArgumentKind.CONST_UNIQUE):
        raise FactorError(
            f"{where}: {declared.__name__} is a type of tables, which take ConstUnique (one table) "
            "or ConstIndexed (each instance names its table), or TunableShared (one table of "
            f"unknowns), not {kind.value}"
        )
    if get_origin(declared) is Pair:
        raise FactorError(f"{where}: caspar.Pair needs the marker TunablePair")
    symbolic = argument_value(factor, declared, source, taken)
    made = _one_argument(factor, name, source, kind, False, declared, symbolic)
    if isinstance(marker, TunableSequential):
        made = replace(made, own_bounds=(marker.lower, marker.upper))
    return [made], made.symbolic


def _parts_of_patch(
    factor: Factor, name: str, source: str, grid: "type[Grid]", taken: set[str]
) -> "tuple[list[Argument], Patch]":
    """The knots of a patch as nodes and its base as a constant, and the value of all of them."""
    from caspar.frontend.patches import BASE, part_source, patch_type

    patch = argument_value(factor, patch_type(grid), source, taken)
    node, sequential = ArgumentKind.NODE_SHARED, ArgumentKind.CONST_SEQUENTIAL
    parts: list[tuple[str, int | str, ArgumentKind, Any, Any]]
    parts = [(f"knot{k}", k, node, grid.Knot, knot) for k, knot in enumerate(patch.knots())]
    parts.append((BASE, BASE, sequential, type(patch.base()), patch.base()))
    arguments = []
    for part, key, kind, declared, value in parts:
        own_name, own_source = part_name(name, part), part_source(source, key)
        made = _one_argument(factor, own_name, own_source, kind, False, declared, value)
        arguments.append(replace(made, patch=patch))
    return arguments, patch


def _marker(where: str, annotation: Any) -> Marker:
    allowed = ", ".join(kind.__name__ for kind in (*_KINDS, ConstShared))
    if get_origin(annotation) is not Annotated:
        raise FactorError(f"{where}: has no marker; write Annotated[Type, Marker] with {allowed}")
    accesses = markers_in(annotation, Accessor)
    if len(accesses) > 0:
        raise FactorError(
            f"{where}: {marker_name(accesses[0])} is for kernels (caspar.kernel); arguments of a "
            f"factor take one of {allowed}"
        )
    markers = [
        item() if isinstance(item, type) else item for item in markers_in(annotation, Marker)
    ]
    if len(markers) != 1 or type(markers[0]) in (Marker, Tunable, Const):
        found = ", ".join(map(marker_name, markers)) or "none"
        raise FactorError(f"{where}: needs exactly one marker of {allowed}; found {found}")
    marker: Marker = markers[0]
    return marker


def _one_argument(
    factor: Factor,
    name: str,
    source: str,
    kind: ArgumentKind,
    successor: bool,
    declared: Any,
    symbolic: Any,
) -> Argument:
    storage_dim = StorageOps.storage_dim(declared)
    node = None
    if kind.name.startswith("NODE"):
        node = _node_type(factor, source, declared, storage_dim)
    units = unit_ranges(declared)
    return Argument(name, source, kind, successor, storage_dim, units, node, symbolic)


def _node_type(factor: Factor, source: str, declared: Any, storage_dim: int) -> NodeType:
    name = getattr(declared, "__name__", None)
    check_name(factor, f"argument {source}, node type {declared!r}", name)
    try:
        tangent_dim = LieGroupOps.tangent_dim(declared)
    except (NotImplementedError, TypeError, AttributeError) as error:
        raise FactorError(
            f"{factor.title}, argument {source}: {declared!r} has no tangent space, so it cannot "
            f"be tunable ({error})"
        ) from error
    units, parts = unit_ranges(declared), tangent_parts(declared)
    return NodeType(str(name), declared, storage_dim, tangent_dim, units, parts)


def factor_comparison(factor: Factor, traced: TracedFactor) -> Comparison:
    """Return what comparing a factor with numbers needs."""
    parts: dict[str, list[Argument]] = {}
    for argument in traced.arguments:
        parts.setdefault(argument.written, []).append(argument)
    arguments = tuple(_point_argument(name, ones) for name, ones in parts.items())
    names = tuple(f"row {number} of the residual" for number in range(len(traced.residual)))
    return Comparison(
        factor, arguments, names, traced.residual, lambda result: column(factor, result)
    )


def _point_argument(name: str, parts: Sequence[Argument]) -> PointArgument:
    first = parts[0]
    if first.patch is not None:
        return PointArgument(name, (first.patch,), sum(one.storage_dim for one in parts), ())
    templates = tuple(one.symbolic for one in parts)
    return PointArgument(name, templates, first.storage_dim, first.unit_ranges)
