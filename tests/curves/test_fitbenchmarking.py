"""The controller of `examples/fitbenchmarking`, on problems of NIST that FitBenchmarking brings."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import curve_fit

fitbenchmarking = pytest.importorskip("fitbenchmarking")

from fitbenchmarking.controllers.controller_factory import ControllerFactory  # noqa: E402
from fitbenchmarking.cost_func.hellinger_nlls_cost_func import HellingerNLLSCostFunc  # noqa: E402
from fitbenchmarking.cost_func.nlls_cost_func import NLLSCostFunc  # noqa: E402
from fitbenchmarking.cost_func.weighted_nlls_cost_func import WeightedNLLSCostFunc  # noqa: E402
from fitbenchmarking.parsing.parser_factory import parse_problem_file  # noqa: E402
from fitbenchmarking.utils.exceptions import IncompatibleProblemError  # noqa: E402
from fitbenchmarking.utils.options import Options  # noqa: E402

from examples.fitbenchmarking import caspar_controller  # noqa: E402

PROBLEMS = Path(fitbenchmarking.__file__).parent / "benchmark_problems/NIST/low_difficulty"

CERTIFIED = {
    "Misra1a": [2.3894212918e02, 5.5015643181e-04],
    "DanWood": [7.6886226176e-01, 3.8604055871e00],
}
"""Parameters of the least sum of squares, by NIST."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """FitBenchmarking knows caspar during a test only."""
    module = "fitbenchmarking.controllers.caspar_controller"
    monkeypatch.setitem(sys.modules, module, caspar_controller)
    software = Options.VALID_FITTING["software"]
    monkeypatch.setitem(Options.VALID_FITTING, "software", list(software))
    for minimizers in (Options.VALID_MINIMIZERS, Options.DEFAULT_MINIMZERS):
        monkeypatch.setitem(minimizers, "caspar", [])
    caspar_controller.register()


def problem_of(name: str) -> Any:
    parsed = parse_problem_file(str(PROBLEMS / f"{name}.dat"), Options())
    problem = parsed[0] if isinstance(parsed, list) else parsed
    problem.correct_data()
    return problem


def controller_of(problem: Any, cost_func: Any = NLLSCostFunc, start: int = 0) -> Any:
    """A controller that FitBenchmarking has found by its name."""
    controller = ControllerFactory.create_controller("caspar")(cost_func(problem))
    controller.minimizer, controller.parameter_set = "lm-cpu", start
    return controller


def run(controller: Any) -> Any:
    """As FitBenchmarking runs it; the parameters."""
    controller.validate_minimizer("lm-cpu", ["ls"])
    controller.check_minimizer_bounds("lm-cpu")
    controller.prepare()
    for _ in range(2):
        controller.execute()
    controller.cleanup()
    controller.check_attributes()
    return controller.final_params


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("start", [0, 1])
def test_problems_of_nist(name: str, start: int) -> None:
    problem = problem_of(name)
    controller = controller_of(problem, start=start)
    assert_allclose(run(controller), CERTIFIED[name], rtol=1e-7)
    assert controller.flag == 0
    assert controller.iteration_count > 1
    least = controller.eval_chisq(CERTIFIED[name])
    assert controller.eval_chisq(controller.final_params) == pytest.approx(least, rel=1e-9)


def test_errors_and_bounds() -> None:
    problem = problem_of("Misra1a")
    assert problem.data_e is not None
    expected, _ = curve_fit(
        problem.function, problem.data_x, problem.data_y, CERTIFIED["Misra1a"], problem.data_e
    )
    assert_allclose(run(controller_of(problem, WeightedNLLSCostFunc)), expected, rtol=1e-5)
    problem.set_value_ranges({"b1": (240.0, 600.0)})
    bounded = controller_of(problem)
    assert run(bounded)[0] == 240.0
    bounded.check_bounds_respected()
    assert bounded.flag == 0


def test_a_fit_that_is_not_done() -> None:
    controller = controller_of(problem_of("Misra1a"))
    controller.prepare()
    fit = controller._fit
    controller._fit = lambda: fit(max_iterations=2)
    controller.execute()
    controller.cleanup()
    assert controller.flag == 1


def test_what_cannot_be_fitted_is_refused() -> None:
    def of_length(x: Any, b1: Any, b2: Any) -> Any:
        return b1 * x.size + b2 * x

    def with_loop(x: Any, b1: Any, b2: Any) -> Any:
        return np.array([b1 * one + b2 for one in x])

    problem = problem_of("DanWood")
    for function, text in (
        (of_length, "'DanWood': the traced formula has the cost .* must treat all x alike"),
        (with_loop, "'DanWood': the model cannot be traced: "),
    ):
        problem.function = function
        with pytest.raises(IncompatibleProblemError, match=text):
            controller_of(problem).prepare()
    problem = problem_of("DanWood")
    with pytest.raises(IncompatibleProblemError, match="is HellingerNLLSCostFunc; it must be nlls"):
        controller_of(problem, HellingerNLLSCostFunc).prepare()
    problem.data_x = np.stack([problem.data_x, problem.data_x], axis=1)
    with pytest.raises(IncompatibleProblemError, match=r"x has the shape \(6, 2\) and y \(6,\)"):
        controller_of(problem).prepare()
    problem = problem_of("DanWood")
    controller = controller_of(problem)
    problem.multifit = True
    with pytest.raises(IncompatibleProblemError, match="several data sets"):
        controller.prepare()
