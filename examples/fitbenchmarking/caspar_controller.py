"""caspar in FitBenchmarking: a controller, and a program that runs FitBenchmarking with it.

Input: a problem of FitBenchmarking whose model caspar can trace. Output: its parameters. Tracing
and compilation take place in `setup`, which is not timed; `fit` is one call of a
`caspar.BatchSolver`.

    python caspar_controller.py -s caspar scipy_ls -p FOLDER_OF_PROBLEMS

takes the arguments of the command `fitbenchmarking`.
"""

import sys
from typing import Any

import numpy as np
from fitbenchmarking.controllers.base_controller import Controller
from fitbenchmarking.cost_func.nlls_cost_func import NLLSCostFunc
from fitbenchmarking.cost_func.weighted_nlls_cost_func import WeightedNLLSCostFunc
from fitbenchmarking.utils.exceptions import IncompatibleProblemError
from fitbenchmarking.utils.options import Options

import caspar
from caspar.curves import Curve

BACKENDS = {"lm-cpu": "cpu", "lm-cuda": "cuda"}
"""The backend of each minimizer."""

_SAME_COST = 1e-6
"""Relative difference that is allowed between the start's cost by the formula and by the model."""


class CasparController(Controller):
    """Fits by caspar's Levenberg-Marquardt, with derivatives of the traced model.

    Problems have one independent variable, one data set, and the cost function `nlls` or
    `weighted_nlls`. The model is a function over NumPy of single numbers; see `caspar.curves`.
    """

    controller_name = "caspar"

    algorithm_check = {  # noqa: RUF012 - as all controllers have it
        "all": list(BACKENDS),
        "ls": list(BACKENDS),
        "deriv_free": [],
        "general": [],
        "simplex": [],
        "trust_region": list(BACKENDS),
        "levenberg-marquardt": list(BACKENDS),
        "gauss_newton": [],
        "bfgs": [],
        "conjugate_gradient": [],
        "steepest_descent": [],
        "global_optimization": [],
        "MCMC": [],
    }

    support_for_bounds = True

    def __init__(self, cost_func: Any) -> None:
        super().__init__(cost_func)
        self._fit: Any = None
        self._result: Any = None

    def setup(self) -> None:
        """Trace the model and compile the fit.

        Raises:
            IncompatibleProblemError: caspar does not take such problems, or cannot trace the model.
        """
        self._refuse_unsuited()
        names = tuple(f"p{place}" for place in range(len(self.initial_params)))
        try:
            # the constructor in place of from_function: a model may have *parameters
            curve = Curve(self.problem.function, names)
            solver = caspar.BatchSolver(curve.factor, backend=BACKENDS[self.minimizer])
        except caspar.errors.BackendError:
            raise
        except Exception as error:  # the model runs on symbols, and may raise anything
            raise self._refusal(f"the model cannot be traced: {error}") from error
        data = {"x": self.data_x[None, :], "y": self.data_y[None, :]}
        if isinstance(self.cost_func, WeightedNLLSCostFunc):
            data["weight"] = self.data_e[None, :] ** -2.0
        arrays = {"Parameters": np.array([self.initial_params], np.float64), "curve": data}
        bounds = None
        if self.value_ranges is not None:
            lower, upper = np.array(self.value_ranges, np.float64).T
            bounds = {"Parameters": (lower[None, :], upper[None, :])}

        def fit(**options: Any) -> Any:
            return solver.solve(arrays, bounds=bounds, **options)

        self._check_cost(fit(max_iterations=1))
        self._fit = fit

    def fit(self) -> None:
        """Fit the data. FitBenchmarking times this."""
        self._result = self._fit()

    def cleanup(self) -> None:
        """Set parameters, number of iterations and flag: converged, out of iterations, failed."""
        (status,) = self._result.status
        self.final_params = np.asarray(self._result.values["Parameters"])[0]
        self.iteration_count = int(self._result.iterations[0])
        if status.is_success:
            self.flag = 0
        else:
            self.flag = 1 if status is caspar.SolveStatus.ITERATION_LIMIT else 2

    def _refuse_unsuited(self) -> None:
        """Refuse problems that are no curve, and other cost functions."""
        kind = type(self.cost_func)
        if kind not in (NLLSCostFunc, WeightedNLLSCostFunc):
            raise self._refusal(
                f"the cost function is {kind.__name__}; it must be nlls or weighted_nlls"
            )
        if self.problem.multifit:
            raise self._refusal("it has several data sets; it must have one")
        shapes = np.shape(self.data_x), np.shape(self.data_y)
        if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
            raise self._refusal(
                f"x has the shape {shapes[0]} and y {shapes[1]}; both must be (m,) of one variable"
            )

    def _check_cost(self, result: Any) -> None:
        """Refuse a formula that is not the model, for example of one that asks for len(x)."""
        cost = float(result.initial_cost[0])
        wanted = 0.5 * float(self.cost_func.eval_cost(self.initial_params))
        are_finite = np.isfinite(cost) and np.isfinite(wanted)
        if are_finite and abs(cost - wanted) > _SAME_COST * max(cost, wanted):
            raise self._refusal(
                f"the traced formula has the cost {cost:.8g} at the start, the model {wanted:.8g}; "
                "the model must treat all x alike"
            )

    def _refusal(self, reason: str) -> Exception:
        error: Exception = IncompatibleProblemError(
            f"caspar cannot fit the problem {self.problem.name!r}: {reason}"
        )
        return error


def register() -> None:
    """Tell FitBenchmarking that there is a software `caspar`, in place of changes to its files."""
    module = "fitbenchmarking.controllers.caspar_controller"
    sys.modules[module] = sys.modules[__name__]
    if "caspar" not in Options.VALID_FITTING["software"]:
        Options.VALID_FITTING["software"].append("caspar")
    Options.VALID_MINIMIZERS["caspar"] = list(BACKENDS)
    Options.DEFAULT_MINIMZERS["caspar"] = ["lm-cpu"]


if __name__ == "__main__":
    from fitbenchmarking.cli.main import main  # which a copy among the controllers does without

    register()
    sys.exit(main())
