"""SciPy and, if pyceres is installed, Ceres: exact derivatives, default tolerances."""

import importlib
import importlib.util
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.regression.answer import Answer, Solve
from benchmarks.regression.problem import Array, NumericProblem

UNDEFINED = "residuals not finite"


def has_ceres() -> bool:
    """Whether pyceres can be imported."""
    return importlib.util.find_spec("pyceres") is not None


def scipy_solve(numeric: NumericProblem, method: str) -> Solve:
    """`scipy.optimize.least_squares` with a method of its own."""

    def solve(start: Array) -> Answer:
        try:
            with np.errstate(all="ignore"):
                result = least_squares(numeric.residuals, start, numeric.jacobian, method=method)
        except (ValueError, np.linalg.LinAlgError):
            return Answer(start, False, UNDEFINED)
        return Answer(result.x, bool(result.success), f"status {result.status}")

    return solve


def ceres_solve(numeric: NumericProblem) -> Solve:
    """Ceres, with a dense QR factorisation."""
    pyceres = importlib.import_module("pyceres")
    cost_type = _cost_type(pyceres, numeric)

    def solve(start: Array) -> Answer:
        parameters = start.copy()
        cost = cost_type(len(numeric.residuals(start)), len(start))
        problem = pyceres.Problem()
        problem.add_residual_block(cost, None, [parameters])
        options = pyceres.SolverOptions()
        options.linear_solver_type = pyceres.LinearSolverType.DENSE_QR
        options.logging_type = pyceres.LoggingType.SILENT
        summary = pyceres.SolverSummary()
        pyceres.solve(options, problem, summary)
        converged = summary.termination_type == pyceres.TerminationType.CONVERGENCE
        return Answer(parameters, converged, summary.termination_type.name)

    return solve


def _cost_type(pyceres: Any, numeric: NumericProblem) -> Any:
    """A cost function of Ceres; its base exists only if pyceres is installed."""

    def __init__(self: Any, num_residuals: int, num_parameters: int) -> None:  # noqa: N807
        pyceres.CostFunction.__init__(self)
        self.set_num_residuals(num_residuals)
        self.set_parameter_block_sizes([num_parameters])

    def evaluate(self: Any, parameters: Any, residuals: Any, jacobians: Any) -> bool:
        values = numeric.residuals(parameters[0])
        residuals[:] = values
        is_finite = bool(np.all(np.isfinite(values)))
        if jacobians is not None and jacobians[0] is not None:
            derivatives = numeric.jacobian(parameters[0])
            jacobians[0][:] = derivatives.ravel()
            is_finite = is_finite and bool(np.all(np.isfinite(derivatives)))
        return is_finite

    return type("Cost", (pyceres.CostFunction,), {"__init__": __init__, "Evaluate": evaluate})
