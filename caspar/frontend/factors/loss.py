"""Losses: what a factor's squared residual costs.

A loss replaces the square s = |r|^2 of an instance's residual by rho(s), which grows more slowly
(Triggs et al., *Bundle Adjustment: A Modern Synthesis*, 2000, section 3.4). Its scale a is in units
of the residual: rho(s) = a^2 rho0(s / a^2). Input: a `Loss`. Output: a `TracedLoss`, an expression
with its derivatives by s. A millisecond, once for each solver.
"""

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.errors import FactorError, UnsupportedFunctionError
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.epsilon import SYMBOL, value, with_symbolic_epsilon
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.ir.scalar import Scalar

Floats = NDArray[np.float64]

SCALE = "scale"
"""The parameter that every loss has."""

PREFIX = "loss_"
"""A loss's parameter `scale` is passed as `loss_scale` among a factor's arrays."""


class Loss(ABC):
    """A robust loss; derive a class from it to have one of your own.

    Attributes:
        positive: Parameters of `rho` that must be greater than zero.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> class Root(caspar.loss.Loss):
        ...     def rho(self, s, scale):
        ...         return 2 * scale**2 * (sf.sqrt(1 + s / scale**2) - 1)
        >>> measured = caspar.factors.prior(Length, noise="unit", name="measured").with_loss(Root)
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [9.0]], "loss_scale": 0.5}
        >>> result = caspar.Solver(measured).solve({"Length": [[0.0]], "measured": values})
        >>> result.values["Length"].round(2)
        array([[1.34]])
    """

    positive: ClassVar[tuple[str, ...]] = (SCALE,)

    @abstractmethod
    def rho(self, *args: Any, **kwargs: Any) -> Any:
        """The loss as a symbolic expression; a subclass defines `rho(self, s, scale)`.

        Args:
            args: `s`, the squared norm of a residual; `scale`, in units of the residual; and any
                other parameters, which users pass as `loss_<name>` beside the factor's arrays. A
                default in the signature makes one optional; `scale` is 1 by default.
            kwargs: Nothing: parameters are passed by position.

        Returns:
            rho(s), which must be 0 at s = 0, must not decrease, and must scale with the residual:
            rho(c^2 s, c scale) = c^2 rho(s, scale). Its slope at s = 0 should be 1. For case
            distinctions use `sf.Piecewise`, not `if`.
        """

    def __repr__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class LossParameter:
    """A number, or one for each instance, that a loss depends on besides the residual.

    `default` None: it must be passed.
    """

    name: str
    default: float | None
    is_positive: bool

    @property
    def source(self) -> str:
        """The name under which users pass it."""
        return f"{PREFIX}{self.name}"


@dataclass(frozen=True)
class TracedLoss:
    """A loss rho(s) as an expression of the symbols of s and of its parameters."""

    name: str
    parameters: tuple[LossParameter, ...]
    square: Any
    symbols: tuple[Any, ...]
    expression: Any

    @property
    def key(self) -> str:
        """Text that determines what is generated."""
        parameters = ", ".join(one.name for one in self.parameters)
        return f"{self.name}({parameters}) = {expression_key([self.expression])}"

    def lowered(
        self, graph: GraphBuilder, square: Scalar, values: Mapping[str, Scalar], epsilon_of: DType
    ) -> tuple[Scalar, Scalar, Scalar]:
        """rho(s) and its first two derivatives by s, with the parameters' values by name.

        `sf.epsilon()` stands for the epsilon of the type `epsilon_of`.
        """
        graph.origin = f"loss {self.name}"
        known = {str(SYMBOL): graph.const(value(epsilon_of)), str(self.square): square.value}
        for parameter, symbol in zip(self.parameters, self.symbols, strict=True):
            known[str(symbol)] = values[parameter.name].value
        rho = Lowering(graph, known, f"loss {self.name}").lower(self.expression)
        slope = gradient(graph, rho, [square.value])[0]
        curvature = gradient(graph, slope, [square.value])[0]
        return Scalar(graph, rho), Scalar(graph, slope), Scalar(graph, curvature)

    def on_numbers(
        self, square: Floats, values: Mapping[str, Floats | float]
    ) -> tuple[Floats, Floats, Floats]:
        """rho(s) and its first two derivatives, (n,) float64 each; values are numbers or (n,)."""
        graph = GraphBuilder(DType.FLOAT64)
        read = {
            name: Scalar(graph, graph.read(name, 0, 1)[0])
            for name in ("square", *(one.source for one in self.parameters))
        }
        by_name = {one.name: read[one.source] for one in self.parameters}
        made = self.lowered(graph, read["square"], by_name, DType.FLOAT64)
        for name, scalar in zip(("rho", "slope", "curvature"), made, strict=True):
            graph.store(name, 0, [scalar.value])
        inputs = {"square": np.reshape(np.asarray(square, np.float64), (-1, 1))}
        for one in self.parameters:
            inputs[one.source] = np.reshape(np.asarray(values[one.name], np.float64), (-1, 1))
        found = evaluate_graph(graph.build(), inputs)
        rho, slope, curvature = (
            np.broadcast_to(found[name][:, 0], (len(inputs["square"]),)).copy()
            for name in ("rho", "slope", "curvature")
        )
        return rho, slope, curvature

    @cached_property
    def levels_off(self) -> bool:
        """Return whether large residuals pull less than those of the scale's size.

        The pull of a residual of length x is x rho'(x^2). True if that depends on a parameter
        without a default.
        """
        if any(one.default is None for one in self.parameters):
            return True
        defaults = {one.name: one.default or 0.0 for one in self.parameters}
        size = defaults[SCALE] * np.geomspace(1e-2, 1e4, 61)
        pull = size * self.on_numbers(size**2, defaults)[1]
        return bool(pull[-1] < 0.5 * pull.max())


def trace_loss(loss: Any, where: str) -> TracedLoss:
    """Run the `rho` of a `Loss`, or of a class of them, on symbols and check what comes of it.

    Raises a `FactorError` about the factor `where` if it is no loss, or `rho` is not what one
    needs.
    """
    made = checked_loss(loss, where)
    name = type(made).__name__
    where = f"{where}, loss {name}"
    parameters = _parameters(made, where)
    square = sf.Symbol("loss.s")
    symbols = tuple(sf.Symbol(f"loss.{one.name}") for one in parameters)
    try:
        found = with_symbolic_epsilon(made.rho, square, *symbols)
    except Exception as error:
        raise FactorError(
            f"{where}: rho failed on symbols: {error}. It must return one expression; for case "
            "distinctions write sf.Piecewise((first, condition), (second, True))"
        ) from error
    if not isinstance(found, sf.Expr | int | float):
        raise FactorError(f"{where}: rho returned {type(found).__name__}; return one expression")
    traced = TracedLoss(name, parameters, square, symbols, sf.sympify(found))
    _check_values(traced, where)
    return traced


def checked_loss(loss: Any, where: str) -> Loss:
    """The loss itself, also where its class was given; `FactorError` if it is none."""
    try:
        made = loss() if isinstance(loss, type) and issubclass(loss, Loss) else loss
    except TypeError as error:
        raise FactorError(f"{where}, loss {loss.__name__}: {error}") from error
    if not isinstance(made, Loss):
        names = [name for name in caspar.loss.__all__ if name != Loss.__name__]
        by_lower = {name.lower(): name for name in names}
        close = difflib.get_close_matches(str(loss).lower(), by_lower, 1)
        near = by_lower[close[0]] if close else "Huber"
        raise FactorError(
            f"{where}: loss={loss!r}; expected a class of caspar.loss such as caspar.loss.{near} "
            f"({', '.join(names)}), or one of your own that is derived from caspar.loss.Loss"
        )
    return made


def _parameters(loss: Loss, where: str) -> tuple[LossParameter, ...]:
    names = list(inspect.signature(loss.rho).parameters.values())
    is_positional = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in names)
    if not is_positional or len(names) < 2 or names[1].name != SCALE:
        written = ", ".join(map(str, names))
        raise FactorError(
            f"{where}: rho({written}) must have the arguments (s, scale); others may follow them"
        )
    defaults = {SCALE: 1.0}
    for one in names[1:]:
        if one.default is not one.empty:
            defaults[one.name] = float(one.default)
    return tuple(
        LossParameter(one.name, defaults.get(one.name), one.name in loss.positive)
        for one in names[1:]
    )


def _check_values(loss: TracedLoss, where: str) -> None:
    """Refuse an expression that is no loss at some numbers; says what does not hold, and where."""
    square = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 49)])
    # any value will do for a parameter without a default, but for the special ones
    values = {one.name: 0.7 if one.default is None else one.default for one in loss.parameters}
    try:
        rho, slope, _ = loss.on_numbers(square, values)
        unit, factor = loss.on_numbers(square, {**values, SCALE: 1.0})[0], 3.0
        scaled = loss.on_numbers(factor**2 * square, {**values, SCALE: factor})[0]
    except (UnsupportedFunctionError, KeyError) as error:
        raise FactorError(f"{where}: {error}") from error
    bad = ~(np.isfinite(rho) & np.isfinite(slope))
    if bad.any():
        raise FactorError(
            f"{where}: rho or its slope is not finite at s = {square[bad][0]:g}; guard roots and "
            "logarithms, as in sf.sqrt(s / scale**2 + sf.epsilon())"
        )
    if abs(rho[0]) > 1e-12:
        raise FactorError(f"{where}: rho is {rho[0]:g} at s = 0; it must be 0")
    falls = slope < -1e-12
    if falls.any():
        raise FactorError(f"{where}: rho decreases at s = {square[falls][0]:g}; it must not")
    wrong = ~np.isclose(scaled, factor**2 * unit, rtol=1e-6, atol=1e-12)
    if wrong.any():
        raise FactorError(
            f"{where}: rho does not scale with the residual: rho(9 s, 3) is "
            f"{scaled[wrong][0]:g} and 9 rho(s, 1) is {factor**2 * unit[wrong][0]:g} at s = "
            f"{square[wrong][0]:g}. The scale is in units of the residual: write "
            "scale**2 * f(s / scale**2)"
        )


def check_parameter_names(loss: TracedLoss, taken: Mapping[str, object], where: str) -> None:
    """Refuse arguments of the user's function that have the names of a loss's data."""
    for name in ("weight", *(one.source for one in loss.parameters)):
        if name in taken:
            raise FactorError(
                f"{where}, argument {name}: a factor with a loss is passed a {name} of its own; "
                "rename the argument, or leave out the loss"
            )
