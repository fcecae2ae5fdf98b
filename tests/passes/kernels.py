"""Kernels like the solver's, written by hand: graphs to measure and to pin the scheduler on."""

from collections.abc import Callable, Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op

Matrix = list[list[int]]


class Dual:
    """A value with its derivatives with respect to numbered variables (zeros left out)."""

    def __init__(self, builder: GraphBuilder, value: int, partials: dict[int, int]) -> None:
        self.builder = builder
        self.value = value
        self.partials = partials

    def _linear(self, value: int, parts: Sequence[tuple[int, "Dual"]]) -> "Dual":
        """A value whose derivative is the sum of factor * derivative."""
        terms: dict[int, list[int]] = {}
        for factor, dual in parts:
            for variable, partial in dual.partials.items():
                terms.setdefault(variable, []).append(self.builder.prod([factor, partial]))
        partials = {variable: self.builder.sum(found) for variable, found in terms.items()}
        return Dual(self.builder, value, partials)

    def __add__(self, other: "Dual") -> "Dual":
        one = self.builder.const(1.0)
        total = self.builder.sum([self.value, other.value])
        return self._linear(total, [(one, self), (one, other)])

    def __sub__(self, other: "Dual") -> "Dual":
        return self + other.scaled(-1.0)

    def __mul__(self, other: "Dual") -> "Dual":
        product = self.builder.prod([self.value, other.value])
        return self._linear(product, [(other.value, self), (self.value, other)])

    def __truediv__(self, other: "Dual") -> "Dual":
        quotient = self.builder.div(self.value, other.value)
        inverse = self.builder.div(self.builder.const(1.0), other.value)
        slope = self.builder.neg(self.builder.prod([quotient, inverse]))
        return self._linear(quotient, [(inverse, self), (slope, other)])

    def scaled(self, factor: float) -> "Dual":
        """Product with a number."""
        constant = self.builder.const(factor)
        return self._linear(self.builder.prod([constant, self.value]), [(constant, self)])


def _read(builder: GraphBuilder, argument: str, dim: int) -> list[int]:
    length = builder.dtype.chunk_length
    values: list[int] = []
    for first in range(0, dim, length):
        values.extend(builder.read(argument, first // length, min(length, dim - first)))
    return values


def _store(builder: GraphBuilder, argument: str, values: Sequence[int]) -> None:
    length = builder.dtype.chunk_length
    for first in range(0, len(values), length):
        builder.store(argument, first // length, values[first : first + length])


def _cross(a: Sequence[Dual], b: Sequence[Dual]) -> list[Dual]:
    return [a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3] for i in range(3)]


def _rotated(quaternion: Sequence[Dual], vector: Sequence[Dual]) -> list[Dual]:
    """Rotation by a unit quaternion (x, y, z, w)."""
    imaginary, real = quaternion[:3], quaternion[3]
    twice = [component.scaled(2.0) for component in _cross(imaginary, vector)]
    turned = _cross(imaginary, twice)
    return [vector[i] + real * twice[i] + turned[i] for i in range(3)]


def _reprojection(builder: GraphBuilder) -> tuple[list[int], Matrix, Matrix]:
    """Residual, 2x9 camera Jacobian (tangent), 2x3 point Jacobian of the Snavely camera."""
    numbers = _read(builder, "cam", 10) + _read(builder, "point", 3)
    one = builder.const(1.0)
    camera = [Dual(builder, value, {i: one}) for i, value in enumerate(numbers)]
    pixel = [Dual(builder, value, {}) for value in _read(builder, "pixel", 2)]
    rotated = _rotated(camera[:4], camera[10:13])
    x, y, z = (rotated[i] + camera[4 + i] for i in range(3))
    u, v = (x / z).scaled(-1.0), (y / z).scaled(-1.0)
    radius = u * u + v * v
    unit = Dual(builder, one, {})
    distortion = unit + radius * (camera[8] + radius * camera[9])
    residuals = [camera[7] * distortion * w - p for w, p in zip((u, v), pixel, strict=True)]
    zero = builder.const(0.0)
    rows = [[residual.partials.get(i, zero) for i in range(13)] for residual in residuals]
    tangent = _quaternion_tangent(builder, numbers[:4])
    cameras = [_row_times(builder, row[:4], tangent) + row[4:10] for row in rows]
    return [residual.value for residual in residuals], cameras, [row[10:] for row in rows]


def _quaternion_tangent(builder: GraphBuilder, q: Sequence[int]) -> Matrix:
    """Derivative of q * exp(w / 2) at w = 0: 4x3."""
    x, y, z, w = q
    negative = [builder.neg(value) for value in (x, y, z)]
    rows = [[w, negative[2], y], [z, w, negative[0]], [negative[1], x, w], negative]
    half = builder.const(0.5)
    return [[builder.prod([half, value]) for value in row] for row in rows]


def _row_times(builder: GraphBuilder, row: Sequence[int], matrix: Matrix) -> list[int]:
    columns = zip(*matrix, strict=True)
    return [
        builder.sum(builder.prod(pair) for pair in zip(row, column, strict=True))
        for column in columns
    ]


def _gram(builder: GraphBuilder, rows: Matrix) -> list[int]:
    """Lower triangle of rows^T rows."""
    dim = len(rows[0])
    return [
        builder.sum(builder.prod([row[i], row[j]]) for row in rows)
        for i in range(dim)
        for j in range(i + 1)
    ]


def reprojection_jacobian() -> Graph:
    """Residual and both Jacobians of one observation."""
    builder = GraphBuilder(DType.FLOAT32)
    residual, camera, point = _reprojection(builder)
    _store(builder, "residual", residual)
    _store(builder, "camera_jacobian", camera[0] + camera[1])
    _store(builder, "point_jacobian", point[0] + point[1])
    return builder.build()


def reprojection_normal_equations() -> Graph:
    """Gradients and diagonal blocks of one observation, straight from the parameters."""
    builder = GraphBuilder(DType.FLOAT32)
    residual, camera, point = _reprojection(builder)
    for name, jacobian in (("camera", camera), ("point", point)):
        _store(builder, f"{name}_gradient", _row_times(builder, residual, jacobian))
        _store(builder, f"{name}_block", _gram(builder, jacobian))
    return builder.build()


def gram_of_stored_jacobian() -> Graph:
    """9x9 block of a 2x9 Jacobian read from memory."""
    builder = GraphBuilder(DType.FLOAT32)
    numbers = _read(builder, "jacobian", 18)
    _store(builder, "block", _gram(builder, [numbers[:9], numbers[9:]]))
    return builder.build()


def cholesky(dim: int) -> Graph:
    """Solve one symmetric positive definite system: factorise, substitute both ways."""
    builder = GraphBuilder(DType.FLOAT32)
    packed = _read(builder, "matrix", dim * (dim + 1) // 2)
    rhs = _read(builder, "rhs", dim)
    lower: Matrix = [[] for _ in range(dim)]
    inverse_pivots: list[int] = []
    for i in range(dim):
        for j in range(i + 1):
            terms = [builder.neg(builder.prod([lower[i][k], lower[j][k]])) for k in range(j)]
            rest = builder.sum([packed[i * (i + 1) // 2 + j], *terms])
            if i == j:
                root = builder.unary(Op.SQRT, rest)
                lower[i].append(root)
                inverse_pivots.append(builder.div(builder.const(1.0), root))
            else:
                lower[i].append(builder.prod([rest, inverse_pivots[j]]))
    forward: list[int] = []
    for i in range(dim):
        terms = [builder.neg(builder.prod([lower[i][k], forward[k]])) for k in range(i)]
        forward.append(builder.prod([builder.sum([rhs[i], *terms]), inverse_pivots[i]]))
    solution = [0] * dim
    for i in reversed(range(dim)):
        terms = [builder.neg(builder.prod([lower[k][i], solution[k]])) for k in range(i + 1, dim)]
        solution[i] = builder.prod([builder.sum([forward[i], *terms]), inverse_pivots[i]])
    _store(builder, "solution", solution)
    return builder.build()


def cholesky_factor(dim: int) -> Graph:
    """Factorise one symmetric positive definite matrix in place."""
    builder = GraphBuilder(DType.FLOAT32)
    packed = _read(builder, "matrix", dim * (dim + 1) // 2)
    lower: Matrix = [[] for _ in range(dim)]
    for i in range(dim):
        for j in range(i + 1):
            terms = [builder.neg(builder.prod([lower[i][k], lower[j][k]])) for k in range(j)]
            rest = builder.sum([packed[i * (i + 1) // 2 + j], *terms])
            is_pivot = i == j
            lower[i].append(
                builder.unary(Op.SQRT, rest) if is_pivot else builder.div(rest, lower[j][j])
            )
    _store(builder, "matrix", [entry for row in lower for entry in row])
    return builder.build()


def matrix_product(dim: int) -> Graph:
    """Product of two dense matrices."""
    builder = GraphBuilder(DType.FLOAT32)
    left, right = _read(builder, "left", dim * dim), _read(builder, "right", dim * dim)
    rows = [left[dim * i : dim * (i + 1)] for i in range(dim)]
    matrix = [right[dim * i : dim * (i + 1)] for i in range(dim)]
    _store(builder, "out", [entry for row in rows for entry in _row_times(builder, row, matrix)])
    return builder.build()


KERNELS: dict[str, Callable[[], Graph]] = {
    "reprojection_jacobian": reprojection_jacobian,
    "reprojection_normal_equations": reprojection_normal_equations,
    "gram_of_stored_jacobian": gram_of_stored_jacobian,
    "cholesky_9": lambda: cholesky(9),
    "cholesky_factor_9": lambda: cholesky_factor(9),
    "matrix_product_6": lambda: matrix_product(6),
}
