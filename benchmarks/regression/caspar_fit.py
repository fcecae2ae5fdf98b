"""A problem as a factor of caspar, in two forms, compiled once for all starts."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import symforce.symbolic as sf

import caspar
from benchmarks.regression.answer import Answer
from benchmarks.regression.problem import Array, Problem

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
    """A solver of one problem."""

    def __init__(self, problem: Problem, form: Form) -> None:
        self._data = problem.data
        self._solver = caspar.Solver([_factor(problem, form)], backend="cpu")

    def solve(self, start: Array, options: Mapping[str, Any]) -> Answer:
        """Solve from a start, with default options except for these."""
        result = self.result(start, options)
        values = result.values["Parameters"][0]
        return Answer(values, result.status.is_success, result.status.name)

    def result(self, start: Array, options: Mapping[str, Any]) -> caspar.SolveResult:
        """The same with all that a solve returns."""
        return self._solver.solve(self._arrays(start), verbose=False, **options)

    def covariance(self, values: Array, *, scaled: bool = True) -> caspar.Covariance:
        """Of the parameters, by the residual variance or for one of 1."""
        return self._solver.covariance(
            self._arrays(values), {"Parameters": "all"}, scale_by_residual_variance=scaled
        )

    def _arrays(self, values: Array) -> dict[str, Any]:
        inputs = {"data": self._data} if self._data.shape[1] > 0 else {}
        return {"Parameters": values[None], "fit": inputs}


def _factor(problem: Problem, form: Form) -> Any:
    """The residuals as a user would write them."""
    count = problem.num_parameters
    node: Any
    if form is Form.VECTOR:
        node = type("Parameters", (sf.matrix_type_from_shape((count, 1)),), {})
    else:
        fields = [(f"b{i}", sf.Scalar) for i in range(count)]
        node = dataclasses.make_dataclass("Parameters", fields)

    def elements(parameters: Any) -> list[Any]:
        if form is Form.VECTOR:
            return [parameters[i] for i in range(count)]
        return [getattr(parameters, f"b{i}") for i in range(count)]

    num_data = problem.data.shape[1]
    if num_data == 0:

        def fit(parameters: Any) -> Any:
            return sf.Matrix(problem.residuals(elements(parameters), ()))

        fit.__annotations__["parameters"] = Annotated[node, caspar.TunableUnique]
        return caspar.factor(fit)

    constants = type("Constants", (sf.matrix_type_from_shape((num_data, 1)),), {})

    def fit_data(parameters: Any, data: Any) -> Any:
        numbers = [data[i] for i in range(num_data)]
        return sf.Matrix(problem.residuals(elements(parameters), numbers))

    fit_data.__name__ = "fit"
    fit_data.__annotations__["parameters"] = Annotated[node, caspar.TunableUnique]
    fit_data.__annotations__["data"] = Annotated[constants, caspar.ConstSequential]
    return caspar.factor(fit_data)
