"""Rotations that act on a residual through a vector alone: r(R, p) = f(R (p - o)).

Their derivatives are those by the vector, in another dress. A rotation R Exp(d) moves R (p - o) as
far as moving p by d x (p - o) does, so

    d r / d d = a x (d r / d p), a = p - o;  of f(R^T (p - o)): R^T ((d r / d p) x a),

six operations for a row, with R^T fifteen, instead of some fifty through the quaternion.

Whether a rotation is one of these is proven for each factor. What is made of the arguments by sums
and products alone are polynomials; all else of the residual depends on the arguments only through
these. If each of them has the property, so has the residual (chain rule). Two polynomials that
agree at random points are the same: a wrong answer has probability zero (J. Schwartz, *Fast
Probabilistic Algorithms for Verification of Polynomial Identities*, 1980). Literals are random too,
or a term with a small one could hide in the rounding.

Once for each solver, some milliseconds a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.field_types import UnitRange
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.ir.ops import Op

QUATERNION = 4
NUM_POINTS = 5
TOLERANCE = 1e-9
"""Largest difference that counts as none, relative to the largest terms of both sides."""
MAX_COUNT = 16.0
"""Whole numbers up to it stay as they are; other literals are random."""
LITERALS = "literals of the residual"
"""The argument that these literals are read from."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Triple:
    """Three scalars of an argument, from `start` on."""

    argument: str
    start: int

    @property
    def places(self) -> list[tuple[str, int]]:
        """The argument's name and the scalar's place, of each."""
        return [(self.argument, self.start + k) for k in range(3)]


@dataclass(frozen=True)
class TurnedVector:
    """A rotation and the vector it turns.

    Attributes:
        node: The argument that has the rotation.
        start: First scalar of its quaternion.
        column: First of the rotation's three columns in the node's tangent.
        vector: What is turned: p.
        origin: What is subtracted from it before: o. None: nothing.
        is_inverse: The vector is turned by R^T.
    """

    node: str
    start: int
    column: int
    vector: Triple
    origin: Triple | None
    is_inverse: bool


class _Argument(Protocol):
    """The used part of a factor's argument."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> object | None: ...
    @property
    def storage_dim(self) -> int: ...
    @property
    def unit_ranges(self) -> tuple[UnitRange, ...]: ...
    @property
    def symbols(self) -> list[Any]: ...
    @property
    def storage_by_tangent(self) -> Any: ...


def rotation_matrix(node: _Argument, start: int) -> Any:
    """R of a quaternion in a node: a 3 x 3 matrix of expressions of the node's symbols."""
    quaternion = node.symbols[start : start + QUATERNION]
    return sf.Rot3.from_storage(quaternion).to_rotation_matrix()


def turned_vectors(
    arguments: Sequence[_Argument], residual: Sequence[Any], where: str
) -> tuple[TurnedVector, ...]:
    """The rotations of a factor that act through a vector alone, at most one vector each."""
    rotations = [
        (node, unit.start)
        for node in arguments
        if node.node is not None
        for unit in node.unit_ranges
        if unit.stop - unit.start == QUATERNION
    ]
    if len(rotations) == 0:
        return ()
    slopes = _Slopes(arguments, residual, rotations, where)
    triples = [
        Triple(argument.name, start)
        for argument in arguments
        for start in range(argument.storage_dim - 2)
    ]
    found = (_turned_by(slopes, triples, node.name, start) for node, start in rotations)
    return tuple(one for one in found if one is not None)


def _turned_by(
    slopes: _Slopes, triples: Sequence[Triple], node: str, start: int
) -> TurnedVector | None:
    column = slopes.rotation_column(node, start)
    if column is None:
        return None
    by_rotation = slopes.by_rotation(node, start, column)
    if not by_rotation.any():
        return None
    turned_back = -np.einsum("ijp,fjp->fip", slopes.matrices[node, start], by_rotation)
    size = slopes.size(node, start)
    quaternion = {(node, start + k) for k in range(QUATERNION)}
    triples = [triple for triple in triples if quaternion.isdisjoint(triple.places)]
    for vector, is_inverse in product(triples, (False, True)):
        wanted = turned_back if is_inverse else by_rotation
        for origin in _origins(slopes, wanted, size, vector, triples):
            return TurnedVector(node, start, column, vector, origin, is_inverse)
    return None


def _origins(
    slopes: _Slopes, wanted: Array, size: Array, vector: Triple, triples: Sequence[Triple]
) -> Iterator[Triple | None]:
    """The o for which (p - o) x (d r / d p) is what is wanted; None is zero."""
    by_vector = slopes.by_vector(vector)
    lengths = _length(by_vector)
    # a cross product is perpendicular to its factors, whatever the origin is
    along = np.einsum("fip,fip->fp", wanted, by_vector)
    if not by_vector.any() or not _are_zero(along[:, None], size * lengths):
        return
    # neither is there one where the vector does not count: most vectors end here
    alone = ~lengths.any(axis=1)
    if alone.any() and not _are_zero(wanted[alone], size[alone]):
        return
    for origin in (None, *triples):
        arm = slopes.at(vector) - (0.0 if origin is None else slopes.at(origin))
        crossed = _crossed(arm, by_vector)
        if _are_zero(crossed - wanted, size + _length(arm) * lengths):
            yield origin


def _are_zero(differences: Array, sizes: Array) -> bool:
    """Return whether (polynomials, components, points) are rounding of (polynomials, points) sizes.

    Each polynomial has its own measure: one that is small may be divided by a small number later.
    """
    largest = TOLERANCE * sizes.max(axis=-1)
    return bool((np.abs(differences).max(axis=(1, 2)) <= largest).all())


def _crossed(arm: Array, vectors: Array) -> Array:
    """The cross products of (3, points) with (polynomials, 3, points), quicker than NumPy's."""
    (x, y, z), (u, v, w) = arm, vectors.swapaxes(0, 1)
    return np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=1)


def _length(vectors: Array) -> Array:
    return np.asarray(np.linalg.norm(vectors, axis=-2))


class _Slopes:
    """Derivatives of a residual's polynomials at random points.

    `matrices` has the (3, 3, points) rotation matrix of each quaternion, by node and first scalar.
    """

    def __init__(
        self,
        arguments: Sequence[_Argument],
        residual: Sequence[Any],
        rotations: Sequence[tuple[_Argument, int]],
        where: str,
    ) -> None:
        builder = _LiteralsRead()
        scalars = {
            (argument.name, place): builder.read(argument.name, place, 1)[0]
            for argument in arguments
            for place in range(argument.storage_dim)
        }
        names = [str(symbol) for argument in arguments for symbol in argument.symbols]
        symbols = dict(zip(names, scalars.values(), strict=True))
        symbols[str(SYMBOL)] = builder.const(value(DType.FLOAT64))
        lowering = Lowering(builder, symbols, where)
        inputs = list(scalars.values())
        polynomials = _last_polynomials(builder, [lowering.lower(row) for row in residual], inputs)
        builder.is_lowering = False
        slopes = [gradient(builder, one, inputs) for one in polynomials]
        self._number = {key: number for number, key in enumerate(scalars)}
        self._points = _random_points(arguments, len(builder.places))
        # another one: literals of these are not read
        lowering = Lowering(builder, symbols, where)

        def lowered(matrix: Any) -> Array:
            return np.array([[lowering.lower(entry) for entry in row] for row in matrix.to_list()])

        wanted = [np.array(slopes, dtype=int).reshape(len(polynomials), len(inputs))]
        wanted += [lowered(node.storage_by_tangent) for node, _ in rotations]
        wanted += [lowered(rotation_matrix(node, start)) for node, start in rotations]
        self._by_storage, *found = _evaluated(builder, wanted, self._points)
        count = len(rotations)
        self._charts = {node.name: found[k] for k, (node, _) in enumerate(rotations)}
        self.matrices = {
            (node.name, start): found[count + k] for k, (node, start) in enumerate(rotations)
        }

    def rotation_column(self, node: str, start: int) -> int | None:
        """The first of three columns of the tangent that move a quaternion and nothing else."""
        moved = np.any(self._charts[node], axis=2)
        columns = np.flatnonzero(moved[start : start + QUATERNION].any(axis=0))
        if len(columns) != 3 or columns[2] != columns[0] + 2:
            return None
        others = np.delete(moved, slice(start, start + QUATERNION), axis=0)
        return None if others[:, columns].any() else int(columns[0])

    def size(self, node: str, start: int) -> Array:
        """(polynomials, points) size of the derivatives by a quaternion."""
        first = self._number[node, start]
        return _length(self._by_storage[:, first : first + QUATERNION])

    def by_rotation(self, node: str, start: int, column: int) -> Array:
        first = self._number[node, start]
        slopes = self._by_storage[:, first : first + QUATERNION]
        chart = self._charts[node][start : start + QUATERNION, column : column + 3]
        return np.asarray(np.einsum("fsp,scp->fcp", slopes, chart))

    def by_vector(self, vector: Triple) -> Array:
        first = self._number[vector.places[0]]
        return self._by_storage[:, first : first + 3]

    def at(self, triple: Triple) -> Array:
        return self._points[triple.argument].T[triple.start : triple.start + 3]


class _LiteralsRead(GraphBuilder):
    """While a residual is lowered, its literals are read, equal magnitudes from one place.

    But for small whole numbers: the 2 in the entries of R counts. What holds for any numbers there
    holds for the literals.
    """

    def __init__(self) -> None:
        super().__init__(DType.FLOAT64)
        self.is_lowering = True
        self.places: dict[str, int] = {}

    def const(self, number: float) -> int:
        is_count = float(number).is_integer() and abs(number) <= MAX_COUNT
        if is_count or not self.is_lowering:
            return super().const(number)
        place = self.places.setdefault(repr(abs(number)), len(self.places))
        magnitude = self.read(LITERALS, place, 1)[0]
        return self.neg(magnitude) if number < 0.0 else magnitude


def _random_points(arguments: Sequence[_Argument], num_literals: int) -> dict[str, Array]:
    """(NUM_POINTS, storage_dim) of each argument, its unit vectors of unit length."""
    rng = np.random.default_rng(0)
    points: dict[str, Array] = {LITERALS: rng.normal(size=(NUM_POINTS, num_literals))}
    for argument in arguments:
        drawn = rng.normal(size=(NUM_POINTS, argument.storage_dim))
        for unit in argument.unit_ranges:
            part = drawn[:, unit.start : unit.stop]
            part /= np.linalg.norm(part, axis=1, keepdims=True)
        points[argument.name] = drawn
    return points


def _evaluated(
    builder: GraphBuilder, matrices: Sequence[Array], points: Mapping[str, Array]
) -> list[Array]:
    """(rows, columns, points) numbers of (rows, columns) values."""
    names = [f"matrix {number}" for number in range(len(matrices))]
    for name, matrix in zip(names, matrices, strict=True):
        for place, one in enumerate(matrix.flat):
            builder.store(name, place, [int(one)])
    # one scalar a chunk: places are chunk numbers
    found = evaluate_graph(builder.build(), points, dict.fromkeys((*points, *names), 1))
    empty = np.zeros((NUM_POINTS, 0))
    return [
        found.get(name, empty).T.reshape(*matrix.shape, NUM_POINTS)
        for name, matrix in zip(names, matrices, strict=True)
    ]


def _last_polynomials(
    builder: GraphBuilder, rows: Sequence[int], inputs: Sequence[int]
) -> list[int]:
    """Polynomials of the inputs that all else is made of, and rows that are polynomials.

    What a sum has in polynomials counts as one, and so for a product: SymEngine has no sums of
    sums, and depth + eps sign(depth) is one sum, of the terms of the depth and another.
    """
    pending, reached = list(rows), set(rows)
    while pending:
        for operand in builder.producer_of(pending.pop()).operands:
            if operand not in reached:
                reached.add(operand)
                pending.append(operand)
    polynomials = set(inputs)
    used = set(rows)
    for one in sorted(reached):
        call = builder.producer_of(one)
        if call.op in (Op.READ, Op.CONST) or (
            _keeps_polynomials(builder, one) and polynomials.issuperset(call.operands)
        ):
            polynomials.add(one)
            continue
        own = [operand for operand in call.operands if operand in polynomials]
        if call.op is Op.SUM and len(own) > 0:
            own = [builder.sum(own)]
        elif call.op is Op.PROD and len(own) > 0:
            own = [builder.prod(own)]
        polynomials.update(own)
        used.update(own)
    return [one for one in sorted(polynomials & used) if builder.literal(one) is None]


def _keeps_polynomials(builder: GraphBuilder, one: int) -> bool:
    call = builder.producer_of(one)
    if call.op is not Op.POW:
        return call.op in (Op.SUM, Op.PROD, Op.NEG)
    exponent = builder.literal(call.operands[1])
    return exponent is not None and exponent.is_integer() and exponent >= 0.0
