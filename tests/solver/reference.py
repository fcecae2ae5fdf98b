"""The same least-squares problems solved by SciPy, in float64 and without caspar's compiler.

Residuals and retractions are SymForce's expressions as NumPy functions; Jacobians are finite
differences of them. What stays common is the tracing of a factor: its arguments and expressions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray
from scipy.optimize import least_squares
from symforce.ops import LieGroupOps, StorageOps

from caspar.equations.node_blocks import LEVELLING_DAMPING, WITHIN_REACH
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, trace
from caspar.frontend.symbolic.epsilon import SYMBOL, value, with_symbolic_epsilon
from caspar.ir.dtype import DType

Array = NDArray[np.float64]
Values = Mapping[str, Array]

STEP = 1e-5
"""Of central differences: the error of a derivative is about 1e-10. It is the step of unknowns that
are added to numbers of up to 1e5. A larger number takes a step of 1e-10 of it: a point at 1e10
would not move by more than some roundings, and what it seemed to gain would be their noise."""


@dataclass(frozen=True)
class Optimum:
    """What SciPy found.

    Attributes:
        cost: 1/2 * the sum of squared residuals.
        values: (n, storage_dim) values of each node type.
    """

    cost: float
    values: Values


@dataclass(frozen=True)
class ArgumentJacobian:
    """Derivatives of a factor's instances by one of their nodes.

    Attributes:
        node: Name of the node type.
        index: (n,) node of each instance.
        first: (n,) first unknown of that node.
        slope: (n, residual_dim, tangent_dim).
    """

    node: str
    index: NDArray[np.int64]
    first: NDArray[np.int64]
    slope: Array


def argument_jacobians(
    factors: Sequence[Factor], arrays: Mapping[str, Any]
) -> list[list[ArgumentJacobian]]:
    """Of each factor at the start values."""
    problem = _Problem(factors, arrays, _start_values(factors, arrays))
    zero = np.zeros(problem.num_unknowns)
    values = problem.retracted(zero)
    return [problem.argument_jacobians(factor, zero, values) for factor in factors]


def minimize_with_scipy(factors: Sequence[Factor], arrays: Mapping[str, Any]) -> Optimum:
    """Solve on the tangent space of the start values, then once more on that of the end.

    Once for equal factors and arrays: many tests ask for the same optimum.
    """
    key = (tuple(factors), _content(arrays))
    if key not in _FOUND:
        _FOUND[key] = _minimize(factors, arrays)
    found = _FOUND[key]
    return Optimum(found.cost, {name: values.copy() for name, values in found.values.items()})


_FOUND: dict[tuple[Any, ...], Optimum] = {}
"""By factors and the content of arrays."""


def _content(given: Any) -> tuple[Any, ...]:
    """What tells arrays apart."""
    if isinstance(given, Mapping):
        return tuple((name, _content(entry)) for name, entry in given.items())
    array = np.asarray(given)
    assert array.dtype != object
    return array.dtype.str, array.shape, array.tobytes()


def _minimize(factors: Sequence[Factor], arrays: Mapping[str, Any]) -> Optimum:
    values = _start_values(factors, arrays)
    for _ in range(2):
        problem = _Problem(factors, arrays, values)
        found = least_squares(
            problem.residuals,
            np.zeros(problem.num_unknowns),
            problem.jacobian,
            method="trf",
            x_scale="jac",
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-12,
        )
        values = problem.retracted(found.x)
    return Optimum(float(found.cost), values)


def cost(factors: Sequence[Factor], arrays: Mapping[str, Any]) -> float:
    """1/2 * the sum of squared residuals at given values."""
    problem = _Problem(factors, arrays, _start_values(factors, arrays))
    rows = problem.residuals(np.zeros(problem.num_unknowns))
    return 0.5 * float(rows @ rows)


def largest_cosine(factors: Sequence[Factor], arrays: Mapping[str, Any]) -> float:
    """Of the angles between the residual and the columns of the Jacobian; 0 at a minimum.

    Its square is the share of the cost that one unknown alone could still take away (More,
    *The Levenberg-Marquardt algorithm: implementation and theory*, 1978, section 7).
    """
    problem = _Problem(factors, arrays, _start_values(factors, arrays))
    zero = np.zeros(problem.num_unknowns)
    rows, jacobian = problem.residuals(zero), problem.jacobian(zero)
    lengths = np.linalg.norm(jacobian, axis=0) * np.linalg.norm(rows)
    lengths[lengths == 0.0] = np.inf
    return float(np.max(np.abs(jacobian.T @ rows) / lengths))


def damped_step(factors: Sequence[Factor], arrays: Mapping[str, Any], damping: float) -> Values:
    """The start values after a step x with (J^T J + damping D) x = -J^T r."""
    problem = _Problem(factors, arrays, _start_values(factors, arrays))
    zero = np.zeros(problem.num_unknowns)
    jacobian = problem.jacobian(zero)
    square = jacobian.T @ jacobian
    damped = square + damping * np.diag(problem.by_parts(np.diag(square), damping))
    step = -np.linalg.solve(damped, jacobian.T @ problem.residuals(zero))
    return problem.retracted(step.astype(float))


def levelled(node: NodeType, squares: Array, damping: float) -> Array:
    """D of (n, tangent_dim) entries of diag(J^T J): see `equations.node_blocks.node_diagonal`.

    All entries are within reach.
    """
    share = WITHIN_REACH * damping / (damping + LEVELLING_DAMPING)
    found = squares.copy()
    for part in node.tangent_parts:
        if len(part) > 1:
            largest = squares[:, part].max(axis=1, keepdims=True)
            found[:, part] = np.maximum(squares[:, part], share * largest)
    return found


class _Problem:
    """Residuals and Jacobian as functions of one tangent step from `start`."""

    def __init__(self, factors: Sequence[Factor], arrays: Mapping[str, Any], start: Values) -> None:
        self._factors = factors
        self._arrays = arrays
        self._start = start
        self._nodes = _node_types(factors)
        self._first: dict[str, int] = {}
        self.num_unknowns = 0
        for name, node in self._nodes.items():
            self._first[name] = self.num_unknowns
            self.num_unknowns += node.tangent_dim * len(start[name])

    def retracted(self, step: Array) -> Values:
        """The start values moved by a step."""
        return {name: self._moved(node, step) for name, node in self._nodes.items()}

    def by_parts(self, squares: Array, damping: float) -> Array:
        """D from diag(J^T J), for all unknowns."""
        found = [
            levelled(node, squares[first : first + size].reshape(-1, node.tangent_dim), damping)
            for name, node in self._nodes.items()
            for first in [self._first[name]]
            for size in [node.tangent_dim * len(self._start[name])]
        ]
        return np.concatenate([rows.ravel() for rows in found])

    def residuals(self, step: Array) -> Array:
        """All residual rows, (num_residuals,)."""
        values = self.retracted(step)
        return np.concatenate(
            [_evaluate(factor, self._arrays, values, {}).ravel() for factor in self._factors]
        )

    def jacobian(self, step: Array) -> Array:
        """Its derivative, (num_residuals, num_unknowns)."""
        values = self.retracted(step)
        blocks = [self._factor_jacobian(factor, step, values) for factor in self._factors]
        return np.concatenate(blocks)

    def _steps(self, node: NodeType, unknowns: NDArray[np.int64]) -> Array:
        """(n,) steps of one unknown of each node, see `STEP`."""
        change = np.zeros(self.num_unknowns)
        change[unknowns] = 1.0
        rows = self._start[node.name]
        is_moved = self._moved(node, change) != self._moved(node, 0.0 * change)
        sizes: Array = np.max(np.abs(rows), axis=1, initial=0.0, where=is_moved)
        return np.maximum(STEP, STEP**2 * sizes)

    def _moved(self, node: NodeType, step: Array) -> Array:
        rows = self._start[node.name]
        first = self._first[node.name]
        part = step[first : first + node.tangent_dim * len(rows)].reshape(-1, node.tangent_dim)
        return _columns(_retraction(node.python_type)(*rows.T, *part.T))

    def _factor_jacobian(self, factor: Factor, step: Array, values: Values) -> Array:
        blocks = self.argument_jacobians(factor, step, values)
        count, dim, _ = blocks[0].slope.shape
        jacobian = np.zeros((count, dim, self.num_unknowns))
        for block in blocks:
            for column in range(block.slope.shape[2]):
                jacobian[np.arange(count), :, block.first + column] += block.slope[:, :, column]
        return jacobian.reshape(count * dim, -1)

    def argument_jacobians(
        self, factor: Factor, step: Array, values: Values
    ) -> list[ArgumentJacobian]:
        """By each node argument of a factor."""
        made = []
        for argument in _residual_function(factor)[0]:
            node = argument.node
            if node is None:
                continue
            first, size = self._first[node.name], len(self._start[node.name])
            touched = _node_index(argument, self._arrays[factor.name], size)
            slopes = []
            for column in range(node.tangent_dim):
                unknowns = first + column + node.tangent_dim * np.arange(size)
                sizes = self._steps(node, unknowns)
                change = np.zeros(self.num_unknowns)
                change[unknowns] = sizes
                after, before = (
                    _evaluate(factor, self._arrays, values, {argument.name: self._moved(node, x)})
                    for x in (step + change, step - change)
                )
                slopes.append((after - before) / (2.0 * sizes[touched][:, None]))
            slope = np.stack(slopes, axis=2)
            index = np.broadcast_to(touched, slope.shape[:1])
            made.append(ArgumentJacobian(node.name, index, first + node.tangent_dim * index, slope))
        return made


def _evaluate(
    factor: Factor, arrays: Mapping[str, Any], values: Values, moved: Mapping[str, Array]
) -> Array:
    """(n, residual_dim) residuals; arguments in `moved` take their nodes from there."""
    arguments, function = _residual_function(factor)
    given = arrays[factor.name]
    columns: list[Array] = []
    for argument in arguments:
        if argument.node is None:
            rows = _constant(argument, given[argument.source])
        else:
            nodes = moved.get(argument.name, values[argument.node.name])
            rows = nodes[_node_index(argument, given, len(nodes))]
        columns += list(rows.T)
    return _columns(function(*columns))


def _node_index(argument: Argument, given: Mapping[str, Any], size: int) -> NDArray[np.int64]:
    if argument.kind is ArgumentKind.NODE_UNIQUE:
        return np.zeros(1, dtype=int)
    if argument.kind is ArgumentKind.NODE_PAIR:
        return np.arange(size - 1) + int(argument.successor)
    return np.asarray(given[argument.source], dtype=int)


def _constant(argument: Argument, given: Any) -> Array:
    """(n, dim) values of each instance, or (1, dim) for all."""
    if argument.kind is ArgumentKind.CONST_INDEXED:
        rows = np.asarray(given["values"], dtype=float).reshape(-1, argument.storage_dim)
        indexed: Array = rows[np.asarray(given["index"])]
        return indexed
    return np.asarray(given, dtype=float).reshape(-1, argument.storage_dim)


@cache
def _residual_function(factor: Factor) -> tuple[tuple[Argument, ...], Callable[..., Any]]:
    traced = trace(factor)
    symbols = [symbol for argument in traced.arguments for symbol in argument.symbols]
    return traced.arguments, _numpy_function(symbols, traced.residual)


@cache
def _retraction(python_type: type) -> Callable[..., Any]:
    node = StorageOps.symbolic(python_type, "node")
    step = [sympy.Symbol(f"step{i}") for i in range(LieGroupOps.tangent_dim(python_type))]
    moved = with_symbolic_epsilon(LieGroupOps.retract, node, step, SYMBOL)
    return _numpy_function([*StorageOps.to_storage(node), *step], StorageOps.to_storage(moved))


def _numpy_function(symbols: Sequence[Any], expressions: Sequence[Any]) -> Callable[..., Any]:
    """A function of float64 arrays, by SymPy."""
    epsilon = {sympy.sympify(SYMBOL): value(DType.FLOAT64)}
    function: Callable[..., Any] = sympy.lambdify(
        [sympy.sympify(symbol) for symbol in symbols],
        [sympy.sympify(expression).subs(epsilon) for expression in expressions],
        modules=[{"SignNoZero": _sign_no_zero, "CopysignNoZero": _copysign_no_zero}, "numpy"],
        cse=True,
    )
    return function


def _sign_no_zero(x: Any) -> Any:
    return np.where(x < 0.0, -1.0, 1.0)


def _copysign_no_zero(x: Any, y: Any) -> Any:
    return np.copysign(x, _sign_no_zero(y))


def _columns(columns: Sequence[Any]) -> Array:
    """(n, dim) of columns that may be scalars."""
    return np.stack(np.broadcast_arrays(*map(np.atleast_1d, columns)), axis=1)


def _start_values(factors: Sequence[Factor], arrays: Mapping[str, Any]) -> Values:
    return {name: np.array(arrays[name], dtype=float) for name in _node_types(factors)}


def _node_types(factors: Sequence[Factor]) -> dict[str, NodeType]:
    arguments = [argument for factor in factors for argument in _residual_function(factor)[0]]
    return {argument.node.name: argument.node for argument in arguments if argument.node}
