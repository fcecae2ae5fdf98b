"""A problem as factors of caspar, in several forms, compiled once for all starts."""

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar
from benchmarks.regression.answer import Answer
from benchmarks.regression.problem import Array, Kind, Problem

TIGHT: Mapping[str, Any] = {
    "cost_tolerance": 1e-15,
    "gradient_tolerance": 1e-28,
    "step_tolerance": 1e-14,
    "max_iterations": 1000,
}
"""Options near rounding."""


class Form(Enum):
    """How the parameters are declared: as one vector, or as a dataclass of one scalar each."""

    VECTOR = "vector"
    SCALARS = "scalars"


class CasparFit:
    """A solver of one problem.

    If residuals take few of the parameters each, every parameter is a node, whatever the form.
    """

    def __init__(self, problem: Problem, form: Form, **choices: Any) -> None:
        """Choices are those of `caspar.Solver`; without one the backend is the processor."""
        form = Form.VECTOR if problem.is_sparse else form
        node = _node(1 if problem.is_sparse else problem.num_parameters, form)
        factors = [_factor(kind, n, node) for n, kind in enumerate(problem.kinds)]
        self._solver = caspar.Solver(factors, **({"backend": "cpu"} | choices))
        self._shape = (-1, 1) if problem.is_sparse else (1, -1)
        self._inputs: dict[str, dict[str, Any]] = {}
        for number, kind in enumerate(problem.kinds):
            inputs: dict[str, Any] = {}
            if kind.unknowns is not None:
                inputs |= {f"x{at}": column for at, column in enumerate(kind.unknowns.T)}
            if kind.data.shape[1] > 0:
                inputs["data"] = kind.data
            self._inputs[_name(number)] = inputs
        self._bounds: Any = {}
        if problem.bounds is not None:
            lower, upper = (one.reshape(self._shape) for one in problem.bounds)
            limits: Any = (lower, upper)
            if form is Form.SCALARS:
                limits = {
                    f"b{i}": pair for i, pair in enumerate(zip(lower[0], upper[0], strict=True))
                }
            self._bounds = {"bounds": {"Parameters": limits}}

    def solve(self, start: Array, options: Mapping[str, Any]) -> Answer:
        """Solve from a start, with default options except for these."""
        result = self.result(start, options)
        values = np.asarray(result.values["Parameters"]).ravel()
        status = result.status
        return Answer(values, status.is_success, status.name, len(result.iterations))

    def result(self, start: Array, options: Mapping[str, Any]) -> caspar.SolveResult:
        """The same with all that a solve returns."""
        return self._solver.solve(self._arrays(start), verbose=False, **self._bounds, **options)

    def covariance(self, values: Array, *, scaled: bool = True) -> caspar.Covariance:
        """Of the parameters, by the residual variance or for one of 1."""
        return self._solver.covariance(
            self._arrays(values), {"Parameters": "all"}, scale_by_residual_variance=scaled
        )

    def _arrays(self, values: Array) -> dict[str, Any]:
        return {"Parameters": values.reshape(self._shape)} | self._inputs


def _name(number: int) -> str:
    return "fit" if number == 0 else f"fit{number}"


def _node(count: int, form: Form) -> Any:
    """The type of a node of this many parameters."""
    if form is Form.SCALARS:
        fields = [(f"b{i}", sf.Scalar) for i in range(count)]
        return dataclasses.make_dataclass("Parameters", fields)
    return type("Parameters", (sf.matrix_type_from_shape((count, 1)),), {})


def _factor(kind: Kind, number: int, node: Any) -> Any:
    """The residuals of one kind as a user would write them."""
    num_data = kind.data.shape[1]
    arguments: dict[str, Any] = {"parameters": Annotated[node, caspar.TunableUnique]}
    if kind.unknowns is not None:
        shared = Annotated[node, caspar.TunableShared]
        arguments = {f"x{at}": shared for at in range(kind.unknowns.shape[1])}
    num_tunable = len(arguments)
    if num_data > 0:
        constants = type("Constants", (sf.matrix_type_from_shape((num_data, 1)),), {})
        arguments["data"] = Annotated[constants, caspar.ConstSequential]

    def fit(*given: Any) -> Any:
        if dataclasses.is_dataclass(node):
            unknowns = [getattr(given[0], field.name) for field in dataclasses.fields(node)]
        else:
            unknowns = [entry for one in given[:num_tunable] for entry in one.to_storage()]
        data = [given[-1][i] for i in range(num_data)]
        return sf.Matrix(kind.residuals(unknowns, data))

    fit.__name__ = _name(number)
    fit.__annotations__ = arguments
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [inspect.Parameter(name, positional) for name in arguments]
    fit.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return caspar.factor(fit)
