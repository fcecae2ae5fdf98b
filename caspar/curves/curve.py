"""`Curve`: a model function with named parameters, fitted to many data sets at once.

Input: a function over NumPy, a formula, an lmfit or an astropy model, and data (P, m). Output:
`CurveFits`. The function runs once on symbols; the fits are those of `caspar.BatchSolver`. lmfit
and astropy are not imported: whoever has such a model has them.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
import sympy
from numpy.typing import ArrayLike, NDArray

from caspar.batch.result import BatchResult
from caspar.batch.solver import BatchSolver
from caspar.curves.numpy_symbols import NumpySymbol, expression_of, with_symbolic_builtins
from caspar.errors import FactorError, InputError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.markers import ConstSequential, TunableUnique
from caspar.frontend.names import name_refusal
from caspar.loss import Loss
from caspar.options import BackendChoice, BackendName, BatchPrecisionName

Function = Callable[..., Any]


def expression_parts(expression: Any, x: str) -> tuple[Function, tuple[str, ...]]:
    """The function of a formula, and its parameters sorted by name, or an `InputError`."""
    names = {"S", "N", "E", "I", "Q", "O", "C"}  # SymPy's own objects, users' parameters here
    try:
        parsed = sympy.parse_expr(
            str(expression), local_dict={name: sympy.Symbol(name) for name in names}
        )
        symbols = {one.name: one for one in parsed.free_symbols}
    except (SyntaxError, TypeError, AttributeError, sympy.SympifyError) as error:
        raise InputError(f"expression {expression!r} is no formula: {error}") from error
    if x not in symbols:
        raise InputError(
            f"expression {expression!r} has no variable {x!r}; name the independent one with x="
        )
    parameters = tuple(sorted(name for name in symbols if name != x))
    arguments = [symbols[name] for name in (x, *parameters)]
    return sympy.lambdify(arguments, parsed, modules="numpy"), parameters


def lmfit_parts(model: Any, parameters: Any) -> dict[str, Any]:
    """Function, names, start values, bounds and what is held of an lmfit model.

    Raises an `InputError` for a parameter that is an expression of others, or several variables.
    """
    components = getattr(model, "components", [model])
    variables = {name for one in components for name in _variables(one)}
    if len(variables) != 1:
        raise InputError(
            f"{model!r} has the independent variables {', '.join(sorted(variables))}; "
            "caspar.curves takes one"
        )
    given = model.make_params() if parameters is None else parameters
    # without those that lmfit derives from them, such as a full width
    names = tuple(name for one in components for name in _lmfit_names(one))
    for name in names:
        if given[name].expr is not None:
            raise InputError(
                f"parameter {name!r} is {given[name].expr!r}, an expression of others, which "
                "caspar.curves does not take; write it into the function"
            )
    finite = {name: given[name].value for name in names}
    return {
        "function": _lmfit_function(model, names),
        "names": names,
        "start": {name: value for name, value in finite.items() if math.isfinite(value)},
        "bounds": {name: (given[name].min, given[name].max) for name in names},
        "held": frozenset(name for name in names if not given[name].vary),
    }


def _variables(model: Any) -> list[str]:
    if hasattr(model, "expr"):
        return list(model.independent_vars)
    parameters = inspect.signature(model.func).parameters
    return [
        one for one in model.independent_vars if parameters[one].default is inspect.Parameter.empty
    ]


def _lmfit_names(model: Any) -> list[str]:
    if hasattr(model, "expr"):
        return list(expression_parts(model.expr, model.independent_vars[0])[1])
    known = set(model.param_names)
    arguments = inspect.signature(model.func).parameters
    return [f"{model.prefix}{one}" for one in arguments if f"{model.prefix}{one}" in known]


def _lmfit_function(model: Any, names: tuple[str, ...]) -> Function:
    evaluate = _lmfit_evaluation(model)

    def function(x: Any, *values: Any) -> Any:
        return evaluate(x, dict(zip(names, values, strict=True)))

    return function


def _lmfit_evaluation(model: Any) -> Callable[[Any, dict[str, Any]], Any]:
    if hasattr(model, "left"):
        first, second = map(_lmfit_evaluation, (model.left, model.right))
        join = model.op
        return lambda x, values: join(first(x, values), second(x, values))
    if hasattr(model, "expr"):
        formula, names = expression_parts(model.expr, model.independent_vars[0])
        return lambda x, values: formula(x, *(values[name] for name in names))
    function = with_symbolic_builtins(model.func)
    roots = [name.removeprefix(model.prefix) for name in _lmfit_names(model)]

    def evaluate(x: Any, values: dict[str, Any]) -> Any:
        own = {root: values[f"{model.prefix}{root}"] for root in roots}
        return function(**{model.independent_vars[0]: x}, **own, **model.opts)

    return evaluate


def astropy_parts(model: Any) -> dict[str, Any]:
    """Function, names, start values, bounds and what is held of an astropy model.

    Raises an `InputError` for tied parameters, several inputs, or a set of models.
    """
    if model.n_inputs != 1 or model.n_outputs != 1 or len(model) != 1:
        raise InputError(f"{type(model).__name__}: caspar.curves takes one model of one input")
    names = tuple(model.param_names)
    tied = [name for name in names if model.tied[name]]
    if len(tied) > 0:
        raise InputError(
            f"parameter {tied[0]!r} is tied to others, which caspar.curves does not take; write it "
            "into the function"
        )
    return {
        "function": _astropy_function(model),
        "names": names,
        "start": dict(zip(names, map(float, model.parameters), strict=True)),
        "bounds": {name: _closed(model.bounds[name]) for name in names},
        "held": frozenset(name for name in names if model.fixed[name]),
    }


def _closed(bounds: Any) -> tuple[float, float]:
    lower, upper = bounds
    return (-math.inf if lower is None else lower, math.inf if upper is None else upper)


def _astropy_function(model: Any) -> Function:
    if not hasattr(model, "left"):
        return with_symbolic_builtins(model.evaluate)
    operators: dict[str, Function] = {
        "+": lambda one, other: one + other,
        "-": lambda one, other: one - other,
        "*": lambda one, other: one * other,
        "/": lambda one, other: one / other,
        "**": lambda one, other: one**other,
    }
    left, right = _astropy_function(model.left), _astropy_function(model.right)
    count = len(model.left.param_names)
    if model.op == "|":
        return lambda x, *values: right(left(x, *values[:count]), *values[count:])
    if model.op not in operators:
        raise InputError(f"astropy's operator {model.op!r} between models is not supported")
    join = operators[model.op]
    return lambda x, *values: join(left(x, *values[:count]), right(x, *values[count:]))


Floats = NDArray[np.float64]
Bounds = tuple[float, float]

_FREE: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class CurveFits:
    """The results of fits to P data sets.

    Attributes:
        values: (P,) of each parameter, by name.
        stderr: (P,) standard errors, by name; 0 for parameters that were held or are at a bound,
            NaN for those that the data do not determine.
        covariance: (P, k, k) in the order of `values`.
        result: Statuses, costs and iterations: a `caspar.BatchResult`.
    """

    values: Mapping[str, Floats]
    stderr: Mapping[str, Floats]
    covariance: Floats
    result: BatchResult

    def __str__(self) -> str:
        """The report of the batch."""
        return str(self.result)


@dataclass(frozen=True, eq=False)
class Curve:
    """A model function with named parameters.

    Attributes:
        function: Maps x and the parameters to y, with NumPy's functions of single numbers.
        names: The parameters, in its order.
        start: Start values by name, where they are known.
        bounds: (lower, upper) by name.
        held: Names of parameters that keep their start values.
        loss: A class of `caspar.loss`; None: least squares.

    Raises:
        FactorError: A name that no parameter may have, or none at all.
        InputError: Start values or bounds of parameters that do not exist.

    Example:
        >>> import numpy as np
        >>> from caspar.curves import Curve
        >>> x = np.linspace(0.0, 3.0, 20)
        >>> curve = Curve(lambda x, a, b: a * np.exp(-b * x), names=("a", "b"))
        >>> fits = curve.fit(x, 2.0 * np.exp(-0.5 * x), {"a": 1.0, "b": 1.0})
        >>> fits.values["a"].round(3), fits.values["b"].round(3)
        (array([2.]), array([0.5]))
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    start: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    loss: type[Loss] | None = None

    def __post_init__(self) -> None:
        """Check names."""
        if len(self.names) == 0:
            raise FactorError("the curve has no parameters: nothing can be fitted")
        for name in self.names:
            refusal = name_refusal(name)
            if refusal != "":
                raise FactorError(f"parameter {name!r} of the curve: {refusal}")
        for what, given in (("start", self.start), ("bounds", self.bounds), ("held", self.held)):
            unknown = [name for name in given if name not in self.names]
            if len(unknown) > 0:
                raise InputError(
                    f"{what}: the curve has no parameter {unknown[0]!r}; it has "
                    f"{', '.join(self.names)}"
                )

    @classmethod
    def from_function(cls, function: Callable[..., Any], **others: Any) -> "Curve":
        """A function f(x, a, b, ...), as `scipy.optimize.curve_fit` takes it.

        Args:
            function: Written with NumPy's functions of single numbers.
            others: Fields of the curve, such as `bounds` and `loss`.

        Example:
            >>> import numpy as np
            >>> from caspar.curves import Curve
            >>> def decay(x, amplitude, rate):
            ...     return amplitude * np.exp(-rate * x)
            >>> x = np.linspace(0.0, 3.0, 20)
            >>> y = [decay(x, 2.0, 0.5), decay(x, 3.0, 1.0)]  # two data sets
            >>> fits = Curve.from_function(decay).fit(x, y, {"amplitude": 1.0, "rate": 1.0})
            >>> fits.values["rate"].round(3)
            array([0.5, 1. ])
        """
        _, *parameters = inspect.signature(function).parameters.values()
        names = tuple(one.name for one in parameters)
        defaults = {
            one.name: float(one.default) for one in parameters if one.default is not one.empty
        }
        return cls(function, names, **{"start": defaults, **others})

    @classmethod
    def from_expression(cls, expression: Any, x: str = "x", **others: Any) -> "Curve":
        """A formula as text, or a SymPy expression.

        Args:
            expression: Such as `"a * exp(-x / tau) + c"`. Parameters are its other symbols, sorted
                by name.
            x: The name of the independent variable.
            others: Fields of the curve.

        Raises:
            InputError: The text is no formula.

        Example:
            >>> import numpy as np
            >>> from caspar.curves import Curve
            >>> curve = Curve.from_expression("a * exp(-x / tau)", bounds={"tau": (0.1, 10.0)})
            >>> x = np.linspace(0.0, 3.0, 20)
            >>> fits = curve.fit(x, 2.0 * np.exp(-x / 1.5), {"a": 1.0, "tau": 1.0})
            >>> fits.values["tau"].round(3)
            array([1.5])
        """
        function, names = expression_parts(expression, x)
        return cls(function, names, **others)

    @classmethod
    def from_lmfit(cls, model: Any, parameters: Any = None, **others: Any) -> "Curve":
        """A model of lmfit, also one composed of several.

        Args:
            model: An `lmfit.Model` of one independent variable.
            parameters: `lmfit.Parameters` with start values, bounds and what is held (`vary`);
                None: those that the model makes.
            others: Fields of the curve, which replace those of the parameters.

        Raises:
            InputError: A parameter that is an expression of others, or several variables.

        Example:
            >>> import lmfit
            >>> import numpy as np
            >>> from caspar.curves import Curve
            >>> model = lmfit.models.LinearModel()
            >>> curve = Curve.from_lmfit(model, model.make_params(slope=1.0, intercept=0.0))
            >>> x = np.linspace(0.0, 1.0, 5)
            >>> curve.fit(x, 2.0 * x + 1.0).values["slope"].round(3)
            array([2.])
        """
        return cls(**{**lmfit_parts(model, parameters), **others})

    @classmethod
    def from_astropy(cls, model: Any, **others: Any) -> "Curve":
        """A fittable model of astropy with one input, also one composed of several.

        Args:
            model: An `astropy.modeling.Model`. Its values are start values; its `fixed` and
                `bounds` count.
            others: Fields of the curve, which replace those of the model.

        Raises:
            InputError: Tied parameters, or several inputs.

        Example:
            >>> import numpy as np
            >>> from astropy.modeling.models import Gaussian1D
            >>> from caspar.curves import Curve
            >>> x = np.linspace(-3.0, 3.0, 30)
            >>> y = Gaussian1D(amplitude=2.0, mean=0.5, stddev=0.8)(x)
            >>> Curve.from_astropy(Gaussian1D()).fit(x, y).values["mean"].round(3)
            array([0.5])
        """
        return cls(**{**astropy_parts(model), **others})

    def __call__(self, x: Any, **values: Any) -> Any:
        """Evaluate the function as it was written.

        Args:
            x: Any array that the function takes.
            values: All parameters by name.
        """
        return self.function(x, *(values[name] for name in self.names))

    @cached_property
    def factor(self) -> Factor:
        """The residual y(x) - y of one sample, with all parameters as one node `Parameters`."""
        parameters = make_dataclass("Parameters", [(name, sf.Scalar) for name in self.names])
        parameters.__module__ = __name__
        function, names = with_symbolic_builtins(self.function), self.names

        def curve(parameters: Any, x: Any, y: Any) -> Any:
            values = (NumpySymbol(getattr(parameters, name)) for name in names)
            found = function(NumpySymbol(x), *values)
            return sf.V1(expression_of(found) - y)

        curve.__annotations__ = {
            "parameters": Annotated[parameters, TunableUnique],
            "x": Annotated[sf.Scalar, ConstSequential],
            "y": Annotated[sf.Scalar, ConstSequential],
        }
        return Factor(curve, "curve", {}, self.loss)

    @cached_property
    def _solvers(self) -> dict[tuple[Any, ...], BatchSolver]:
        return {}

    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        start: Mapping[str, ArrayLike] | None = None,
        *,
        sigma: ArrayLike | None = None,
        absolute_sigma: bool = False,
        loss_scale: float | None = None,
        backend: BackendName | BackendChoice = "auto",
        precision: BatchPrecisionName = "float64",
        **options: Any,
    ) -> CurveFits:
        """Fit to each row of y.

        Args:
            x: (m,), or (P, m) if data sets have their own.
            y: (P, m), or (m,) for one data set. Samples that are NaN are left out.
            start: Start values, numbers or (P,), by name; they replace those of the curve.
            sigma: Standard deviations of y: a number, (m,) or (P, m).
            absolute_sigma: Take sigma as it is in standard errors. Otherwise it is relative, and
                the scatter of the residuals gives the scale, as in SciPy.
            loss_scale: Scale of the loss, if the curve has one, in units of sigma or of y.
            backend: As of `caspar.BatchSolver`.
            precision: As of `caspar.BatchSolver`.
            options: As of `caspar.BatchSolver.solve`, such as `max_iterations`.

        Raises:
            InputError: Shapes that do not fit, or a parameter without a start value.
            FactorError: The function does more than formulas can say.

        Example:
            >>> import numpy as np
            >>> from caspar.curves import Curve
            >>> x, noise = np.arange(4.0), np.array([0.1, -0.1, -0.1, 0.1])
            >>> curve = Curve.from_expression("a * x + b", start={"a": 1.0, "b": 0.0})
            >>> fits = curve.fit(x, 2.0 * x + 1.0 + noise, sigma=0.1, absolute_sigma=True)
            >>> fits.values["a"].round(3), fits.stderr["a"].round(3)
            (array([2.]), array([0.045]))
        """
        ys = np.atleast_2d(np.asarray(y, np.float64))
        xs = np.atleast_2d(np.asarray(x, np.float64))
        if ys.ndim != 2 or xs.shape[1:] != ys.shape[1:] or len(xs) not in (1, len(ys)):
            raise InputError(
                f"x has shape {np.shape(x)} and y {np.shape(y)}; y must be (P, m) or (m,), and x "
                "(m,) or the same as y"
            )
        known = np.isfinite(ys)
        weight = np.broadcast_to(_weights(sigma, ys.shape), ys.shape) * known
        data: dict[str, Any] = {"x": xs, "y": np.where(known, ys, 0.0), "weight": weight}
        if loss_scale is not None:
            data["loss_scale"] = loss_scale
        arrays = {"Parameters": self._starts(start or {}, len(ys)), "curve": data}
        solver = self._solver(backend, precision)
        limits = {"fixed": self._fixed(len(ys)), "bounds": self._bounds(len(ys))}
        result = solver.solve(arrays, **limits, **options)
        covariance = np.asarray(
            solver.covariance(result, scale_by_residual_variance=not absolute_sigma)
        )
        spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        found = np.asarray(result.values["Parameters"])
        return CurveFits(
            values={name: found[:, place] for place, name in enumerate(self.names)},
            stderr={name: spread[:, place] for place, name in enumerate(self.names)},
            covariance=covariance,
            result=result,
        )

    def _solver(self, backend: Any, precision: Any) -> BatchSolver:
        key = backend, precision
        if key not in self._solvers:
            self._solvers[key] = BatchSolver(self.factor, backend=backend, precision=precision)
        return self._solvers[key]

    def _starts(self, given: Mapping[str, ArrayLike], num: int) -> Floats:
        unknown = [name for name in given if name not in self.names]
        missing = [name for name in self.names if name not in {**self.start, **given}]
        if len(unknown) > 0 or len(missing) > 0:
            wrong = (
                f"the curve has no parameter {unknown[0]!r}"
                if unknown
                else f"parameter {missing[0]!r} has no start value"
            )
            raise InputError(f"start: {wrong}; parameters are {', '.join(self.names)}")
        rows = np.empty((num, len(self.names)))
        for place, name in enumerate(self.names):
            value = np.asarray({**self.start, **given}[name], np.float64)
            if value.shape not in ((), (1,), (num,)):
                raise InputError(
                    f"start of {name!r} has shape {value.shape}; it must be a number or ({num},)"
                )
            rows[:, place] = value
        return rows

    def _fixed(self, num: int) -> dict[str, Any] | None:
        if len(self.held) == 0:
            return None
        mask = np.array([name in self.held for name in self.names])
        return {"Parameters": np.tile(mask, (num, 1))}

    def _bounds(self, num: int) -> dict[str, Any] | None:
        limits = [self.bounds.get(name, _FREE) for name in self.names]
        if all(one == _FREE for one in limits):
            return None
        lower, upper = np.array(limits, np.float64).T
        return {"Parameters": (np.tile(lower, (num, 1)), np.tile(upper, (num, 1)))}


def _weights(sigma: ArrayLike | None, shape: tuple[int, ...]) -> Floats:
    if sigma is None:
        return np.ones(())
    spread = np.asarray(sigma, np.float64)
    try:
        np.broadcast_to(spread, shape)
    except ValueError:
        raise InputError(
            f"sigma has shape {spread.shape}; it must be a number, (m,) or (P, m) of {shape}"
        ) from None
    if not np.all(spread > 0.0):
        raise InputError("sigma: standard deviations must be positive")
    weights: Floats = spread**-2.0
    return weights
