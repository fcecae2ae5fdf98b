"""Graphs of any size to time the compiler on: what residuals are made of, and worst cases.

Input: about how many calls, or operands where sums are wide. Output: a float32 graph, the same for
the same size.
"""

import random
from collections.abc import Callable

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op

Vector = tuple[int, int, int]

_WINDOW = 24
"""Vector code uses the last vectors: what a function computes is used soon."""

_CHUNK = 4


def vector_code(size: int) -> Graph:
    """Cross products, rotations, normalisations and sums of 3-vectors: like a residual."""
    rng = random.Random(size)
    builder = GraphBuilder(DType.FLOAT32)
    numbers = _read(builder, "x", 60)
    vectors: list[Vector] = [(a, b, c) for a, b, c in zip(*[iter(numbers)] * 3, strict=True)]
    # values are numbered as they are made, so the greatest one says how many there are
    while max(max(vector) for vector in vectors[-_WINDOW:]) < size:
        a, b = rng.sample(vectors[-_WINDOW:], 2)
        vectors.append(rng.choice(_STEPS)(builder, a, b))
    _store(builder, [value for vector in vectors[-_WINDOW:] for value in vector])
    _store(builder, [value for vector in vectors[::20] for value in vector], "y")
    return builder.build()


def _cross(builder: GraphBuilder, a: Vector, b: Vector) -> Vector:
    x, y, z = (
        builder.sub(builder.prod([a[i - 2], b[i - 1]]), builder.prod([a[i - 1], b[i - 2]]))
        for i in range(3)
    )
    return x, y, z


def _difference(builder: GraphBuilder, a: Vector, b: Vector) -> Vector:
    """a - b / 2; of vectors with a component in common it is not zero."""
    half = builder.const(0.5)
    x, y, z = (builder.sub(p, builder.prod([half, q])) for p, q in zip(a, b, strict=True))
    return x, y, z


def _blend(builder: GraphBuilder, a: Vector, b: Vector) -> Vector:
    """a + (a.b) b."""
    dot = builder.sum(builder.prod(pair) for pair in zip(a, b, strict=True))
    x, y, z = (builder.sum([p, builder.prod([dot, q])]) for p, q in zip(a, b, strict=True))
    return x, y, z


def _normalized(builder: GraphBuilder, a: Vector, _b: Vector) -> Vector:
    squares = builder.sum([builder.const(1e-6), *(builder.prod([p, p]) for p in a)])
    length = builder.unary(Op.SQRT, squares)
    x, y, z = (builder.div(p, length) for p in a)
    return x, y, z


def _turned(builder: GraphBuilder, a: Vector, b: Vector) -> Vector:
    """a turned about the third axis by an angle out of b."""
    sine, cosine = builder.unary(Op.SIN, b[0]), builder.unary(Op.COS, b[0])
    x = builder.sub(builder.prod([cosine, a[0]]), builder.prod([sine, a[1]]))
    y = builder.sum([builder.prod([sine, a[0]]), builder.prod([cosine, a[1]])])
    return x, y, a[2]


_STEPS: tuple[Callable[[GraphBuilder, Vector, Vector], Vector], ...] = (
    _cross,
    _difference,
    _blend,
    _normalized,
    _turned,
)


def wide_sums(size: int) -> Graph:
    """Sums of 100 out of 300 values: eight of 30 blocks of ten, and 20 values more."""
    rng = random.Random(size)
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 300)
    blocks = [values[first : first + 10] for first in range(0, 300, 10)]
    sums = []
    for _ in range(size // 100):
        chosen = [value for block in rng.sample(blocks, 8) for value in block]
        others = [value for value in values if value not in chosen]
        sums.append(builder.sum([*chosen, *rng.sample(others, 20)]))
    _store(builder, sums)
    return builder.build()


def random_sums(size: int) -> Graph:
    """Sums of any 100 out of 300 values: nothing but chance subsets in common."""
    rng = random.Random(size)
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 300)
    _store(builder, [builder.sum(rng.sample(values, 100)) for _ in range(size // 100)])
    return builder.build()


def two_sums(size: int) -> Graph:
    """Two sums of as many products as asked for, with nine in ten in common."""
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 1000)
    products = [
        builder.prod([values[i % 1000], values[(i + 1 + i // 1000) % 1000]])
        for i in range(size // 2)
    ]
    tenth = len(products) // 10
    _store(builder, [builder.sum(products[tenth:]), builder.sum(products[:-tenth])])
    return builder.build()


def matrix_product(size: int) -> Graph:
    """Product of two square matrices."""
    builder = GraphBuilder(DType.FLOAT32)
    dim = max(2, round((size / 2) ** (1 / 3)))
    left, right = (_read(builder, name, dim * dim) for name in ("a", "b"))
    _store(
        builder,
        [
            builder.sum(
                builder.prod([left[row * dim + k], right[k * dim + column]]) for k in range(dim)
            )
            for row in range(dim)
            for column in range(dim)
        ],
    )
    return builder.build()


def chain(size: int) -> Graph:
    """x = sin(a x + b), again and again."""
    builder = GraphBuilder(DType.FLOAT32)
    x, a, b, _ = builder.read("x", 0, 4)
    for _ in range(size // 3):
        x = builder.unary(Op.SIN, builder.sum([builder.prod([a, x]), b]))
    _store(builder, [x])
    return builder.build()


def nested_products(size: int) -> Graph:
    """p = p x, again and again, where nothing else reads p."""
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 50)
    product = values[0]
    for step in range(size):
        product = builder.prod([product, values[step % 50]])
    _store(builder, [product])
    return builder.build()


def prefix_products(size: int) -> Graph:
    """p = p x, again and again, where every p is used in another sum."""
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 50)
    product = values[0]
    sums = []
    for step in range(size // 2):
        product = builder.prod([product, values[step % 50]])
        sums.append(builder.sum([product, values[(7 * step) % 50]]))
    _store(builder, sums)
    return builder.build()


def powers(size: int) -> Graph:
    """Four powers of each of many bases, and quotients by them."""
    builder = GraphBuilder(DType.FLOAT32)
    values = _read(builder, "x", 60)
    exponents = (0.5, -0.5, 2.0, -1.5, 1 / 3, 3.0, -1.0, 0.25)
    results = []
    for number in range(size // 11):
        first, second = values[number % 60], values[(number // 60) % 60]
        offset = builder.const(number + 1.0)
        base = builder.sum([builder.prod([first, first]), second, offset])
        made = [builder.pow(base, exponents[(number + k) % 8]) for k in (0, 1, 3, 4)]
        quotients = [builder.div(first, made[0]), builder.div(second, made[0])]
        results.append(builder.sum([*made, *quotients]))
    _store(builder, results)
    return builder.build()


SHAPES: dict[str, Callable[[int], Graph]] = {
    "vector code": vector_code,
    "chain": chain,
    "matrix product": matrix_product,
    "powers": powers,
    "wide sums with shared subsets": wide_sums,
    "wide random sums": random_sums,
    "two sums of products": two_sums,
    "nested products": nested_products,
    "prefix products": prefix_products,
}


def _read(builder: GraphBuilder, argument: str, dim: int) -> list[int]:
    return [
        value
        for first in range(0, dim, _CHUNK)
        for value in builder.read(argument, first // _CHUNK, min(_CHUNK, dim - first))
    ]


def _store(builder: GraphBuilder, values: list[int], argument: str = "out") -> None:
    for first in range(0, len(values), _CHUNK):
        builder.store(argument, first // _CHUNK, values[first : first + _CHUNK])
