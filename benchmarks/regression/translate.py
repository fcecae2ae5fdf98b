"""Functions of JAX as residuals in symbols: `kinds_of` returns the kinds of a `Problem`.

The jaxpr is interpreted on arrays of small expressions. Residuals of the same shape become
instances of one kind, and numbers in which they differ become data. Done once for each problem; the
cost grows with the number of scalar operations.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import symforce.symbolic as sf

from benchmarks.regression.problem import NONE, Kind

MAX_VECTOR = 24
"""With more unknowns than this, instances take them by number."""

MAX_ROWS = 30
"""Residuals of a kind without data: more would be slow to compile at once."""


class UntranslatableError(Exception):
    """A function has a part that this translation does not know; the message names it."""


@dataclass(frozen=True, eq=False)
class Node:
    """An unknown, a number, or an operation.

    Attributes:
        op: `unknown`, `number`, or a name in OPERATIONS.
        operands: Of an operation.
        value: The number, or the number of the unknown.
    """

    op: str
    operands: tuple["Node", ...] = ()
    value: float = 0.0

    def __add__(self, other: "Node") -> "Node":
        return make("add", self, other)

    def __radd__(self, other: float) -> "Node":
        return make("add", number(other), self)  # NumPy's sums begin with 0

    def __mul__(self, other: "Node") -> "Node":
        return make("mul", self, other)


def _where(condition: Any, no: Any, yes: Any) -> Any:
    return sf.Piecewise((yes, condition), (no, True))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "gt": operator.gt,
    "abs": sf.Abs,
    "atan2": lambda y, x: sf.sympy.atan2(y, x),
    "select_n": _where,
    "erf": lambda x: sf.sympy.erf(x),
    **{name: getattr(sf, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh")},
    **{name: getattr(sf, name) for name in ("asin", "acos")},
    "atan": lambda x: sf.sympy.atan(x),
}
"""What JAX calls them, for symbols of SymForce."""

MOVES = (
    *("broadcast_in_dim", "concatenate", "copy", "gather", "reshape", "rev", "scatter", "select_n"),
    *("slice", "split", "squeeze", "stack", "transpose", "pad", "convert_element_type"),
)
"""Primitives that move values of type float, and need only to know the others."""


def number(value: float) -> Node:
    """A constant."""
    return Node("number", value=float(value))


def make(op: str, *operands: Node) -> Node:
    """An operation; of numbers alone their result, and without neutral elements."""
    if all(one.op == "number" for one in operands):
        folded = OPERATIONS[op](*(sf.S(one.value) for one in operands))
        return number(float(folded))
    if op in _NEUTRAL:
        first, second = operands
        neutral = _NEUTRAL[op]
        if second.op == "number" and second.value == neutral:
            return first
        if first.op == "number" and first.value == neutral and op in ("add", "mul"):
            return second
        if op == "mul" and any(one.op == "number" and one.value == 0.0 for one in operands):
            return number(0.0)
    return Node(op, operands)


_NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "pow": 1.0}


def trace(function: Callable[[Any], Any], num_unknowns: int) -> list[Node]:
    """The entries of what a function of a vector returns; JAX must be in 64 bits.

    Raises:
        UntranslatableError: It has a primitive that is not known.
    """
    assert jax.config.jax_enable_x64
    with jax.disable_jit():  # loops become their iterations
        closed = jax.make_jaxpr(function)(jnp.zeros(num_unknowns))
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    unknowns = np.array([Node("unknown", value=i) for i in range(num_unknowns)], object)
    values[closed.jaxpr.invars[0]] = unknowns
    for equation in closed.jaxpr.eqns:
        inputs = [one.val if hasattr(one, "val") else values[one] for one in equation.invars]
        values.update(zip(equation.outvars, _interpret(equation, inputs), strict=True))
    (result,) = closed.jaxpr.outvars
    return list(_nodes(values[result]).ravel())


def _nodes(values: Any) -> Any:
    """Any array as one of nodes."""
    array = np.asarray(values)
    if array.dtype == object:
        return array
    return (
        np.frompyfunc(number, 1, 1)(array)
        if array.ndim > 0
        else np.array(number(float(array)), object)
    )


def _is_symbolic(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == object


def _bind(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    found = equation.primitive.bind(*map(jnp.asarray, inputs), **equation.params)
    return list(found) if equation.primitive.multiple_results else [found]


def _interpret(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of an equation, as arrays of nodes if an input is one."""
    name, parameters = equation.primitive.name, equation.params
    if not any(map(_is_symbolic, inputs)):
        return _bind(equation, inputs)
    is_chosen = name == "select_n" and _is_symbolic(inputs[0])
    if name in MOVES and not is_chosen:
        return _move(equation, inputs)
    nodes = [_nodes(one) for one in inputs]
    if name in ("integer_pow", "square"):
        exponent = number(parameters.get("y", 2))
        return [_each("pow", nodes[0], np.array(exponent, object))]
    if name == "erfc":
        return [_each("sub", _nodes(1.0), _each("erf", nodes[0]))]
    if name in OPERATIONS:
        return [_each(name, *nodes)]
    if name == "reduce_sum":
        return [np.asarray(np.sum(nodes[0], axis=tuple(parameters["axes"])), object)]
    if name == "dot_general":
        return [_dot(parameters["dimension_numbers"], *nodes)]
    raise UntranslatableError(f"primitive {name}")


def _each(op: str, *operands: Any) -> Any:
    return np.asarray(np.frompyfunc(partial(make, op), len(operands), 1)(*operands), object)


def _move(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Run the primitive on positions in a table of nodes; position 0 is what fills."""
    table, given = [number(0.0)], []
    for one in inputs:
        if _is_symbolic(one) or np.issubdtype(np.asarray(one).dtype, np.floating):
            nodes = _nodes(one)
            positions = np.arange(len(table), len(table) + nodes.size, dtype=np.float64)
            given.append(positions.reshape(nodes.shape))
            table += nodes.ravel().tolist()
        else:
            given.append(one)
    moved = (np.nan_to_num(np.asarray(one)).astype(int) for one in _bind(equation, given))
    return [np.asarray(np.array(table, object)[one], object) for one in moved]


def _dot(dimensions: Any, first: Any, second: Any) -> Any:
    """`dot_general`: sums over the contracted axes; the axes of batches come first."""
    (contracted, with_these), (batch, with_batch) = dimensions
    labels = list(range(first.ndim))
    others = list(range(first.ndim, first.ndim + second.ndim))
    for mine, its in zip((*contracted, *batch), (*with_these, *with_batch), strict=True):
        others[its] = mine
    kept = [one for one in labels if one not in (*contracted, *batch)]
    rest = [one for one in others if one >= first.ndim]
    return np.asarray(np.einsum(first, labels, second, others, [*batch, *kept, *rest]), object)


def squares_of(total: Node) -> list[Node]:
    """Residuals the sum of whose squares is an expression, but for a constant.

    Raises:
        UntranslatableError: It is no sum of squares with positive factors.
    """
    found, left = [], [(total, 1.0)]
    while len(left) > 0:
        node, scale = left.pop()
        first, *rest = node.operands or (node,)
        second = rest[0] if len(rest) == 1 else first
        if node.op == "number":
            continue
        if node.op == "add":
            left += [(first, scale), (second, scale)]
        elif node.op == "sub" and second.op == "number":
            left.append((first, scale))
        elif node.op == "mul" and "number" in (first.op, second.op):
            factor, other = (first, second) if first.op == "number" else (second, first)
            left.append((other, scale * factor.value))
        elif node.op == "div" and second.op == "number":
            left.append((first, scale / second.value))
        elif scale > 0.0 and node.op == "pow" and second.value in (2.0, 4.0):
            root = make("pow", first, number(second.value / 2))
            found.append(make("mul", number(math.sqrt(scale)), root))
        elif scale > 0.0 and node.op == "mul" and first is second:
            found.append(make("mul", number(math.sqrt(scale)), first))
        else:
            raise UntranslatableError("not a sum of squares")
    return found


Shape = tuple[tuple[Any, ...], ...]
"""Operations in order: a name, and the positions of operands or the place of what it reads."""


def _shape(root: Node, by_number: bool) -> tuple[Shape, list[int], list[float]]:
    """What is computed, the unknowns that it reads, and the numbers."""
    steps: list[tuple[Any, ...]] = []
    positions: dict[int, int] = {}
    unknowns: list[int] = []
    numbers: list[float] = []
    left = [root]
    while len(left) > 0:
        node = left[-1]
        waiting = [one for one in node.operands if id(one) not in positions]
        if id(node) in positions:
            left.pop()
            continue
        if len(waiting) > 0:
            left += waiting[::-1]
            continue
        if node.op == "number":
            step: tuple[Any, ...] = ("number", len(numbers))
            numbers.append(node.value)
        elif node.op == "unknown":
            which = int(node.value)
            if which not in unknowns:
                unknowns.append(which)
            step = ("unknown", unknowns.index(which) if by_number else which)
        elif node.op == "pow" and node.operands[1].op == "number":
            step = ("power", positions[id(node.operands[0])], node.operands[1].value)
        else:
            step = (node.op, *(positions[id(one)] for one in node.operands))
        positions[id(node)] = len(steps)
        steps.append(step)
        left.pop()
    return tuple(steps), unknowns, numbers


def _evaluate(shape: Shape, unknowns: Sequence[Any], numbers: Sequence[Any]) -> Any:
    values: list[Any] = []
    for op, *rest in shape:
        if op in ("unknown", "number"):
            values.append((unknowns if op == "unknown" else numbers)[rest[0]])
        elif op == "power":
            exponent = int(rest[1]) if float(rest[1]).is_integer() else rest[1]
            values.append(values[rest[0]] ** exponent)
        else:
            values.append(OPERATIONS[op](*(values[at] for at in rest)))
    return values[-1]


def num_operations(rows: Sequence[Node]) -> int:
    """In all shapes of residuals."""
    return sum(len(shape) for shape in {_shape(row, by_number=True)[0] for row in rows})


def kinds_of(rows: Sequence[Node], num_unknowns: int) -> tuple[Kind, ...]:
    """Residuals by their shape; constant ones are left out."""
    by_number = num_unknowns > MAX_VECTOR
    groups: dict[Shape, list[tuple[list[int], list[float]]]] = {}
    for row in rows:
        if row.op != "number":
            shape, unknowns, numbers = _shape(row, by_number)
            groups.setdefault(shape, []).append((unknowns, numbers))
    kinds, alone = [], []
    for shape, instances in groups.items():
        table = np.array([numbers for _, numbers in instances], np.float64)
        is_data = np.any(table != table[0], axis=0)
        if not by_number and not is_data.any():  # some residuals are equal
            alone += [partial(_evaluate, shape, numbers=numbers) for _, numbers in instances]
            continue
        indices = np.array([unknowns for unknowns, _ in instances]) if by_number else None
        residuals = partial(_kind_residuals, shape, table[0], is_data)
        kinds.append(Kind(residuals, table[:, is_data], indices))
    for first in range(0, len(alone), MAX_ROWS):
        kinds.append(Kind(partial(_lone_residuals, alone[first : first + MAX_ROWS]), NONE))
    return tuple(kinds)


def _lone_residuals(rows: Sequence[Callable[[Any], Any]], x: Any, _: Any) -> list[Any]:
    return [row(x) for row in rows]


def _kind_residuals(shape: Shape, literals: Any, is_data: Any, x: Any, data: Any) -> list[Any]:
    left = iter(data)
    numbers = [
        next(left) if varies else value for value, varies in zip(literals, is_data, strict=True)
    ]
    return [_evaluate(shape, x, numbers)]
