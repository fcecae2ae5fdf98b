"""Models of other libraries as a function with named parameters.

Input: a formula, an lmfit or an astropy model. Output: the fields of a `Curve`. lmfit and astropy
are not imported: whoever has such a model has them.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import sympy

from caspar.curves.numpy_symbols import with_symbolic_builtins
from caspar.errors import InputError

Function = Callable[..., Any]


def expression_parts(expression: Any, x: str) -> tuple[Function, tuple[str, ...]]:
    """The function of a formula, and its parameters sorted by name.

    Raises:
        InputError: It is no formula, or has no such variable.
    """
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

    Raises:
        InputError: A parameter that is an expression of others, or several variables.
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
    """Independent variables that have no default."""
    if hasattr(model, "expr"):
        return list(model.independent_vars)
    parameters = inspect.signature(model.func).parameters
    return [
        one for one in model.independent_vars if parameters[one].default is inspect.Parameter.empty
    ]


def _lmfit_names(model: Any) -> list[str]:
    """Names of the parameters that the function of a model takes."""
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
    """Return a function of x and all parameters by name."""
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

    Raises:
        InputError: Tied parameters, several inputs, or a set of models.
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
    """Return a function of x and the model's parameters, in order."""
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
