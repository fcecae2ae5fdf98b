"""SymForce's Lie group formulas with their Jacobians, at, near and away from their singularities.

The truth is the same formula, with the same epsilon, in fifty digits. A result may be off by some
times what a rounding of every argument and every step changes there: formulas that cancel are the
user's, roundings beyond those of the formula would be the compiler's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from symforce.ops import LieGroupOps, StorageOps

from caspar.frontend.symbolic import epsilon
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadRows, WriteRows

Array = NDArray[np.floating]

mp = mpmath.mp.clone()
mp.dps = 50

ROUNDINGS = 6.0
"""How many times what noise in every step changed a result may be off."""

NUM_DRAWS = 4

_SYMBOLS = (
    *(f"a{number}" for number in range(7)),
    *(f"b{number}" for number in range(7)),
    *(f"v{number}" for number in range(6)),
)
"""Two poses, as quaternion (x, y, z, w) and position, and a tangent: the columns of the rows."""


def _symbols(prefix: str, count: int) -> list[Any]:
    return [sf.Symbol(f"{prefix}{number}") for number in range(count)]


def _element(kind: Any, prefix: str) -> Any:
    return StorageOps.from_storage(kind, _symbols(prefix, StorageOps.storage_dim(kind)))


def _from_tangent(kind: Any) -> Callable[[], list[Any]]:
    def formula() -> list[Any]:
        tangent = _symbols("v", LieGroupOps.tangent_dim(kind))
        return list(StorageOps.to_storage(LieGroupOps.from_tangent(kind, tangent, epsilon.SYMBOL)))

    return formula


def _to_tangent(kind: Any) -> Callable[[], list[Any]]:
    return lambda: list(LieGroupOps.to_tangent(_element(kind, "a"), epsilon.SYMBOL))


def _retract(kind: Any) -> Callable[[], list[Any]]:
    def formula() -> list[Any]:
        tangent = _symbols("v", LieGroupOps.tangent_dim(kind))
        moved = LieGroupOps.retract(_element(kind, "a"), tangent, epsilon.SYMBOL)
        return list(StorageOps.to_storage(moved))

    return formula


def _local_coordinates(kind: Any) -> Callable[[], list[Any]]:
    return lambda: list(
        LieGroupOps.local_coordinates(_element(kind, "a"), _element(kind, "b"), epsilon.SYMBOL)
    )


FORMULAS: Mapping[str, Callable[[], list[Any]]] = {
    "Rot2.from_tangent": _from_tangent(sf.Rot2),
    "Rot2.to_tangent": _to_tangent(sf.Rot2),
    "Rot2.local_coordinates": _local_coordinates(sf.Rot2),
    "Rot3.from_tangent": _from_tangent(sf.Rot3),
    "Rot3.to_tangent": _to_tangent(sf.Rot3),
    "Rot3.retract": _retract(sf.Rot3),
    "Rot3.local_coordinates": _local_coordinates(sf.Rot3),
    "Pose2.retract": _retract(sf.Pose2),
    "Pose2.local_coordinates": _local_coordinates(sf.Pose2),
    "Pose3.retract": _retract(sf.Pose3),
    "Pose3.local_coordinates": _local_coordinates(sf.Pose3),
    "Unit3.retract": _retract(sf.Unit3),
    "Unit3.local_coordinates": _local_coordinates(sf.Unit3),
}


@dataclass(frozen=True)
class Block:
    """Which columns of the results belong to a formula: values, and then slopes.

    Attributes:
        name: The formula's name.
        first: Its first column.
        num_values: Its results; each has a slope by each of its arguments.
        num_slopes: All of those.
    """

    name: str
    first: int
    num_values: int
    num_slopes: int


def group_kernel(kind: str, dtype: DType) -> tuple[KernelSpec, list[Block]]:
    """The formulas of `Rot2`, `Rot3`, ... on `rows`, as `results`."""
    kernel = KernelBuilder(f"group_{kind.lower()}", dtype)
    read = kernel.read("rows", len(_SYMBOLS), dtype, ReadRows())
    symbols = {name: scalar.value for name, scalar in zip(_SYMBOLS, read, strict=True)}
    small = kernel.graph.const(epsilon.value(dtype))
    known = {**symbols, str(epsilon.SYMBOL): small}
    lowering = Lowering(kernel.graph, known, "formula")
    results: list[int] = []
    blocks = []
    for name in (name for name in FORMULAS if name.startswith(kind)):
        formula = epsilon.with_symbolic_epsilon(FORMULAS[name])
        rows = [sf.sympify(row) for row in formula]
        used = sorted({str(s) for row in rows for s in row.free_symbols} & set(symbols))
        values = [lowering.lower(row) for row in rows]
        by = [symbols[symbol] for symbol in used]
        slopes = [slope for value in values for slope in gradient(kernel.graph, value, by)]
        blocks.append(Block(name, len(results), len(values), len(slopes)))
        results += [*values, *slopes]
    kernel.write("results", [Scalar(kernel.graph, v) for v in results], dtype, WriteRows())
    return kernel.build(), blocks


KINDS = ("Rot2", "Rot3", "Pose2", "Pose3", "Unit3")


def elements(kind: str, dtype: DType) -> Array:
    """(n, 20) storage of two elements and a tangent.

    Angles between the elements, and of the first and the tangent: zero, tiny, everyday, and pi or
    just below it. Exactly pi, the sign of a rounding decides between two tangents: there only the
    first element is.
    """
    rng = np.random.default_rng(0)
    angles = [0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.5, 1.5, 3.0, np.pi - 1e-2]
    rows = []
    for number, angle in enumerate([*angles, *(-angle for angle in angles), np.pi - 1e-4, np.pi]):
        axis = np.eye(3)[number % 3] if number % 2 else rng.normal(size=3)
        axis /= np.linalg.norm(axis)
        start = np.zeros(3) if number % 4 == 0 else rng.normal(size=3)
        apart = angle if abs(angle) < np.pi - 1e-3 else 1.0
        shift = rng.normal(size=3) * 10.0 ** rng.uniform(-8, 2)
        place = rng.normal(size=3) * 10.0 ** rng.uniform(-3, 2)
        first = _storage(kind, angle * axis, place)
        begin = _storage(kind, start, place)
        end = _composed(kind, start, apart * axis, place + shift)
        tangent = np.zeros(6)
        tangent[:3], tangent[3:] = apart * axis, shift
        rows += [np.concatenate([first, end, tangent]), np.concatenate([begin, end, tangent])]
    return np.stack(rows).astype(dtype.value) + 0.0  # no -0.0, of which mpmath knows nothing


def _quaternion(rotation: Array) -> Array:
    angle = np.linalg.norm(rotation)
    axis = rotation / angle if angle > 0.0 else rotation
    cosine = np.cos(angle / 2) if abs(angle - np.pi) > 1e-9 else 0.0
    return np.array([*(np.sin(angle / 2) * axis), cosine])


def _storage(kind: str, rotation: Array, place: Array) -> Array:
    if kind in ("Rot2", "Pose2"):
        turn = rotation[np.argmax(np.abs(rotation))]
        cosine_sine = np.array([np.cos(turn), np.sin(turn)])
        return np.array([*cosine_sine, *place[:2], 0.0, 0.0, 0.0])
    if kind == "Unit3":
        return np.array([*_direction(rotation), *place, 0.0])
    return np.array([*_quaternion(rotation), *place])


def _direction(rotation: Array) -> Array:
    """The x axis turned about an axis in the plane of y and z."""
    turn = np.linalg.norm(rotation)
    across = np.array([rotation[1], rotation[2]])
    length = np.linalg.norm(across)
    across = across / length if length > 0.0 else np.array([1.0, 0.0])
    return np.array([np.cos(turn), *(np.sin(turn) * across)])


def _composed(kind: str, start: Array, rotation: Array, place: Array) -> Array:
    """Storage of the start turned further by a rotation."""
    if kind not in ("Rot3", "Pose3"):
        turned = start + rotation if kind == "Unit3" else rotation + start
        return _storage(kind, turned, place)
    (ax, ay, az, aw), (bx, by, bz, bw) = _quaternion(start), _quaternion(rotation)
    return np.array(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
            *place,
        ]
    )


# -- the truth -------------------------------------------------------------------------------------


def _sign(x: Any) -> Any:
    return mp.mpf(1 if x >= 0 else -1)


_EXACT: Mapping[Op, Callable[..., Any]] = {
    Op.SUM: lambda *terms: mp.fsum(terms),
    Op.PROD: lambda *factors: mp.fprod(factors),
    Op.NEG: lambda a: -a,
    Op.DIV: lambda a, b: a / b,
    Op.RCP: lambda a: 1 / a,
    Op.POW: mp.power,
    Op.SQRT: mp.sqrt,
    Op.SIN: mp.sin,
    Op.COS: mp.cos,
    Op.ACOS: mp.acos,
    Op.ATAN2: mp.atan2,
    Op.ABS: abs,
    Op.SIGN: mp.sign,
    Op.COPYSIGN: lambda a, b: abs(a) * _sign(b),
    Op.MIN: min,
    Op.MAX: max,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
}


_ROUNDED = frozenset(_EXACT) - {Op.NEG, Op.ABS, Op.SIGN, Op.COPYSIGN, Op.MIN, Op.MAX, Op.LT, Op.LE}

Noise = Callable[[], float]
"""A relative error, another one each time."""


def truth(graph: Graph, rows: Array, noise: Noise | None = None) -> NDArray[np.float64]:
    """What a graph stores as `results`; NaN after a division by zero.

    Args:
        graph: What a row is evaluated by.
        rows: Arguments.
        noise: Disturbs every argument and every step that rounds.
    """
    with mp.workdps(50):
        exact = [_truth_of_row(graph, row, noise) for row in rows]
    return np.array([[np.nan if v is None else float(v) for v in row] for row in exact])


def _truth_of_row(graph: Graph, row: Array, noise: Noise | None) -> list[Any]:
    values: dict[int, Any] = {}
    stored: list[Any] = []

    def disturbed(value: Any) -> Any:
        return value if noise is None or value is None else value * (1 + noise())

    for call in graph.calls:
        if call.op is Op.READ:
            assert isinstance(call.data, tuple)
            first = call.data[1] * graph.dtype.chunk_length
            for lane, output in enumerate(call.outputs):
                values[output] = disturbed(mp.mpf(float(row[first + lane])))
        elif call.op is Op.CONST:
            assert isinstance(call.data, float)
            values[call.outputs[0]] = mp.mpf(float(row.dtype.type(call.data)))
        elif call.op is Op.STORE:
            stored += [values[operand] for operand in call.operands]
        else:
            value = _apply(call.op, [values[operand] for operand in call.operands])
            values[call.outputs[0]] = disturbed(value) if call.op in _ROUNDED else value
    return stored


def _apply(op: Op, operands: list[Any]) -> Any:
    if op is Op.SELECT:
        return operands[1] if operands[0] else operands[2]
    if any(operand is None for operand in operands):
        return None
    try:
        return _EXACT[op](*operands)
    except ZeroDivisionError:
        return None


def too_far(spec: KernelSpec, blocks: Sequence[Block], rows: Array, results: Array) -> list[str]:
    """A line for each formula whose values or slopes are further from the truth than allowed."""
    eps, tiny = float(np.finfo(rows.dtype).eps), float(np.finfo(rows.dtype).tiny)
    wanted = truth(spec.graph, rows)
    rng = np.random.default_rng(1)
    change = np.zeros_like(wanted)
    for _ in range(NUM_DRAWS):
        moved = truth(spec.graph, rows, lambda: float(rng.uniform(-eps, eps)))
        change = np.maximum(change, np.abs(moved - wanted))
    lines = []
    for block in blocks:
        middle = block.first + block.num_values
        parts = {
            "value": slice(block.first, middle),
            "slope": slice(middle, middle + block.num_slopes),
        }
        for what, columns in parts.items():
            unit = change[:, columns] + eps * np.abs(wanted[:, columns]) + tiny
            ratio = np.abs(results[:, columns].astype(np.float64) - wanted[:, columns]) / unit
            ratio = np.where(np.isfinite(ratio), ratio, np.inf)
            row, column = np.unravel_index(np.argmax(ratio), ratio.shape)
            if ratio[row, column] > ROUNDINGS:
                found = results[:, columns][row, column]
                lines.append(
                    f"{block.name}: {what} {column} is off by {ratio[row, column]:.3g} of "
                    f"{ROUNDINGS} roundings: {found!r} for {wanted[:, columns][row, column]!r}, "
                    f"of {rows[row].tolist()}"
                )
    return lines
