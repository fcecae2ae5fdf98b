"""SciPy and, if they are installed, Ceres and GTSAM: exact derivatives, default tolerances."""

import importlib
import importlib.util
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.regression.answer import Answer, Solve, inside
from benchmarks.regression.problem import Array, NumericProblem

UNDEFINED = "residuals not finite"


def has_ceres() -> bool:
    """Whether pyceres can be imported."""
    return importlib.util.find_spec("pyceres") is not None


def has_gtsam() -> bool:
    """Whether gtsam can be imported."""
    return importlib.util.find_spec("gtsam") is not None


def scipy_solve(
    numeric: NumericProblem, method: str, limit: int | None = None, **options: Any
) -> Solve:
    """`scipy.optimize.least_squares` by a method, with at most `limit` evaluations."""
    bounds = (-np.inf, np.inf) if numeric.bounds is None else numeric.bounds

    def solve(start: Array) -> Answer:
        try:
            with np.errstate(all="ignore"):
                result = least_squares(
                    numeric.residuals,
                    inside(start, numeric),
                    numeric.jacobian,
                    bounds=bounds,
                    method=method,
                    max_nfev=limit,
                    **options,
                )
        except (ValueError, np.linalg.LinAlgError):
            return Answer(start, False, UNDEFINED)
        return Answer(result.x, bool(result.success), f"status {result.status}", result.nfev)

    return solve


def ceres_solve(numeric: NumericProblem, limit: int | None = None) -> Solve:
    """Ceres, with a dense QR factorisation; at most `limit` iterations."""
    pyceres = importlib.import_module("pyceres")
    cost_type = _cost_type(pyceres, numeric)

    def solve(start: Array) -> Answer:
        parameters = start.copy()
        cost = cost_type(len(numeric.residuals(start)), len(start))
        problem = pyceres.Problem()
        problem.add_residual_block(cost, None, [parameters])
        if numeric.bounds is not None:
            for at, (lower, upper) in enumerate(zip(*numeric.bounds, strict=True)):
                if np.isfinite(lower):
                    problem.set_parameter_lower_bound(parameters, at, lower)
                if np.isfinite(upper):
                    problem.set_parameter_upper_bound(parameters, at, upper)
        options = pyceres.SolverOptions()
        if limit is not None:
            options.max_num_iterations = limit
        options.linear_solver_type = pyceres.LinearSolverType.DENSE_QR
        options.logging_type = pyceres.LoggingType.SILENT
        summary = pyceres.SolverSummary()
        pyceres.solve(options, problem, summary)
        converged = summary.termination_type == pyceres.TerminationType.CONVERGENCE
        steps = summary.num_successful_steps + summary.num_unsuccessful_steps
        return Answer(parameters, converged, summary.termination_type.name, steps)

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


def gtsam_solve(numeric: NumericProblem, linear_solver: str) -> Solve:
    """GTSAM's Levenberg-Marquardt with a linear solver of its own, on one factor of a vector."""
    gtsam = importlib.import_module("gtsam")

    def error(_: Any, values: Any, jacobians: Any) -> Array:
        parameters = values.atVector(0)
        if jacobians is not None:
            jacobians[0] = numeric.jacobian(parameters)
        return numeric.residuals(parameters)

    def solve(start: Array) -> Answer:
        noise = gtsam.noiseModel.Unit.Create(len(numeric.residuals(start)))
        graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
        graph.add(gtsam.CustomFactor(noise, [0], error))
        values.insert(0, start)
        parameters = gtsam.LevenbergMarquardtParams()
        parameters.setLinearSolverType(linear_solver)
        optimizer = gtsam.LevenbergMarquardtOptimizer(graph, values, parameters)
        try:
            found = optimizer.optimize().atVector(0)
        except RuntimeError as failure:
            return Answer(start, False, str(failure).strip().splitlines()[0])
        steps = optimizer.iterations()
        is_success = steps < parameters.getMaxIterations()
        is_success &= optimizer.lambda_() < parameters.getlambdaUpperBound()
        return Answer(found, is_success, "CONVERGED" if is_success else "LIMIT", steps)

    return solve
