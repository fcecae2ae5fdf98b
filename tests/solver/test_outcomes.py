"""How solves end: the status, its advice, and the values that come with it."""

import math
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar import SolveStatus
from caspar.options import PrecisionName
from caspar.solver.lm.policy import MAX_NOT_FINITE
from tests.problems import EXAMPLES, Offset, Place, anchor
from tests.solver import reference
from tests.solver.solving import assert_same_values, changed, solve_example, solver


class Spot(sf.V2): ...


GRID = EXAMPLES["grid"].arrays()
VEHICLE = EXAMPLES["vehicle"].arrays()
FACTORS = EXAMPLES["vehicle"].factors


def test_every_status_gives_advice() -> None:
    for status in SolveStatus:
        assert status.value.endswith(".")
        assert len(status.value) > 30


def assert_cost_of_the_values(result: caspar.SolveResult) -> None:
    cost = reference.cost(FACTORS, {**VEHICLE, **result.values})
    assert result.final_cost == pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_iteration_limit(count: int) -> None:
    result = solve_example("vehicle", VEHICLE, max_iterations=count)
    assert result.status is SolveStatus.ITERATION_LIMIT
    assert not result.status.is_success
    assert len(result.iterations) == count
    assert_cost_of_the_values(result)


def test_time_limit() -> None:
    result = solve_example("vehicle", VEHICLE, max_time_s=1e-9)
    assert result.status is SolveStatus.TIME_LIMIT
    assert len(result.iterations) == 1
    assert_cost_of_the_values(result)


def test_solving_again_goes_on() -> None:
    """The advice of the limits: start from the values that came back."""
    arrays = VEHICLE
    for _ in range(20):
        result = solve_example("vehicle", arrays, max_iterations=2)
        if result.status.is_success:
            break
        arrays = {**arrays, **result.values}
    whole = solve_example("vehicle", VEHICLE)
    assert result.final_cost == pytest.approx(whole.final_cost, rel=1e-6)


def test_callback_stops_the_solve() -> None:
    seen: list[caspar.IterationRecord] = []

    def stop_at_second(record: caspar.IterationRecord) -> bool:
        seen.append(record)
        return len(seen) == 2

    result = solve_example("vehicle", VEHICLE, on_iteration=stop_at_second)
    assert result.status is SolveStatus.STOPPED
    assert result.iterations == tuple(seen)
    assert_cost_of_the_values(result)


def test_interrupt_returns_the_last_accepted_values() -> None:
    def interrupt(record: caspar.IterationRecord) -> None:
        if record.iteration == 3:
            raise KeyboardInterrupt

    result = solve_example("vehicle", VEHICLE, on_iteration=interrupt)
    assert result.status is SolveStatus.INTERRUPTED
    assert len(result.iterations) == 3
    limited = solve_example("vehicle", VEHICLE, max_iterations=3)
    assert_same_values(result.values, limited.values)
    assert_cost_of_the_values(result)


@pytest.mark.parametrize("error", [MemoryError, KeyError, SystemExit, caspar.errors.InputError])
def test_what_a_callback_raises_comes_out_as_it_is(error: type[BaseException]) -> None:
    """An error that there is no memory is the solver's only if it is the solver's."""
    raised = error("mine")

    def fail(_: caspar.IterationRecord) -> None:
        raise raised

    with pytest.raises(error) as caught:
        solve_example("vehicle", VEHICLE, on_iteration=fail)
    assert caught.value is raised
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert solve_example("vehicle", VEHICLE).status.is_success


def test_rejected_steps_do_not_move_the_values() -> None:
    arrays = EXAMPLES["decay"].arrays()
    records = solve_example("decay", arrays, initial_damping=1e-8).iterations
    rejected = [record.iteration for record in records if not record.step_accepted]
    assert rejected
    for count in rejected:
        before, after = (
            solve_example("decay", arrays, initial_damping=1e-8, max_iterations=limit).values
            for limit in (max(count - 1, 1), count)
        )
        if count == 1:
            before = {"Curve": arrays["Curve"]}
        assert_same_values(before, after)


def test_damping_limit() -> None:
    """A residual that jumps away from the start values: no step lowers the cost."""
    result = solver((jumping,)).solve(
        {"Place": np.zeros((1, 2)), "jumping": {"place": [0], "known": [[1.0, 1.0]]}},
        max_damping=1e6,
        step_tolerance=0.0,
    )
    assert result.status is SolveStatus.DAMPING_LIMIT
    assert not result.status.is_success
    assert "discontinuous" in result.status.value
    assert not any(record.step_accepted for record in result.iterations)
    assert_array_equal(result.values["Place"], np.zeros((1, 2)))


@caspar.factor
def jumping(
    place: Annotated[Place, caspar.TunableShared],
    known: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    """Promises to fall and rises instead."""
    return known - place + 1e3 * sf.V2(sf.sign(place[0]) ** 2, 0)


@caspar.factor
def logarithm(
    place: Annotated[Place, caspar.TunableShared],
    known: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    """Not finite for negative places."""
    return sf.V2(sf.log(place[0]) - known[0], sf.sqrt(place[1]) - known[1])


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("start", [[-1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])
def test_start_values_without_a_finite_cost(start: list[float], precision: str) -> None:
    arrays = {
        "Place": np.array([[2.0, 3.0], start]),
        "logarithm": {"place": [0, 1], "known": [[1.0, 2.0], [1.0, 2.0]]},
    }
    result = solver((logarithm,), precision).solve(arrays)
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert not result.status.is_success
    assert not math.isfinite(result.initial_cost)
    assert "start values" in result.status.value
    assert result.iterations == ()
    assert_array_equal(result.values["Place"], arrays["Place"])


def test_steps_where_the_cost_is_not_finite_are_rejected() -> None:
    """A full step goes where the logarithm has no value."""
    arrays = {
        "Place": np.array([[300.0, 400.0]]),
        "logarithm": {"place": [0], "known": [[1.0, 2.0]]},
    }
    result = solver((logarithm,)).solve(arrays, initial_damping=1e-12)
    reasons = [record.reason for record in result.iterations]
    assert "the cost of the candidate is not finite" in reasons
    assert result.status.is_success
    np.testing.assert_allclose(result.values["Place"], [[math.e, 4.0]], rtol=1e-6)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
class TestExactlySolvable:
    """Problems whose cost has no bound but zero end with a success."""

    def test_linear(self, precision: str) -> None:
        truth = np.stack(np.divmod(np.arange(36.0), 6.0), axis=1)
        arrays = _consistent_grid(truth)
        result = solve_example("grid", arrays, precision)
        assert result.status.is_success
        assert len(result.iterations) < 30
        np.testing.assert_allclose(result.values["Place"], truth, atol=1e-6)

    def test_nonlinear(self, precision: str) -> None:
        x = np.linspace(0.0, 4.0, 50)
        samples = np.stack([x, 3.0 * np.exp(-0.7 * x) + 0.5], axis=1)
        arrays: dict[str, Any] = {"Curve": np.ones((1, 3)), "decay": {"sample": samples}}
        result = solve_example("decay", arrays, precision)
        assert result.status.is_success
        tolerance = 1e-5 if precision == "mixed" else 1e-9
        np.testing.assert_allclose(result.values["Curve"], [[3.0, 0.7, 0.5]], rtol=tolerance)

    def test_already_solved(self, precision: str) -> None:
        truth = np.stack(np.divmod(np.arange(36.0), 6.0), axis=1)
        arrays = {**_consistent_grid(truth), "Place": truth}
        result = solve_example("grid", arrays, precision)
        assert result.status is SolveStatus.CONVERGED_GRADIENT
        assert result.initial_cost == result.final_cost == 0.0
        assert len(result.iterations) <= 1
        assert_array_equal(result.values["Place"], truth)


def _consistent_grid(truth: Any) -> dict[str, Any]:
    between = GRID["between"]
    arrays = changed(GRID, "between.offset", truth[between["end"]] - truth[between["start"]])
    return changed(arrays, "anchor.known", truth[arrays["anchor"]["place"]])


@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_at_the_optimum_it_returns_at_once(precision: str) -> None:
    optimum = solve_example("grid", GRID, precision, cost_tolerance=1e-12)
    again = solve_example("grid", {**GRID, **optimum.values}, precision)
    assert again.status.is_success
    assert len(again.iterations) <= 2
    assert again.final_cost == pytest.approx(optimum.final_cost, rel=1e-9)


def test_balanced_forces() -> None:
    """Two anchors pull one place with equal force."""
    arrays = {
        "Place": np.array([[1.0, 1.0]]),
        "anchor": {"place": [0, 0], "known": np.array([[0.0, 0.0], [2.0, 2.0]])},
    }
    result = solver((anchor,)).solve(arrays)
    assert result.status is SolveStatus.CONVERGED_GRADIENT
    assert result.final_cost == result.initial_cost == 2.0
    assert len(result.iterations) <= 1


class Roots(sf.V4): ...


@caspar.factor
def power_sums(roots: Annotated[Roots, caspar.TunableUnique]) -> sf.V4:
    sums = (sum(root**power for root in roots) for power in (1, 2, 3, 4))
    return sf.V4(*sums) - sf.V4(8, 18, 44, 114)


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("start", [(0.0, 1.0, 2.0, 3.0), (0.5, 2.0, 5.0, 3.0)])
def test_a_promise_below_rounding_denies_no_success(start: Any, precision: PrecisionName) -> None:
    """A double root is only half as exact: 1, 2, 2, 3 by POWERSUM of CUTEst."""
    solver = caspar.Solver(power_sums, backend="cpu", precision=precision)
    result = solver.solve({"Roots": [start], "power_sums": {}})
    assert result.final_cost < 1e-24
    assert result.status.is_success
    roots = np.sort(np.ravel(result.values["Roots"]))
    assert roots == pytest.approx([1.0, 2.0, 2.0, 3.0], abs=1e-5)


def test_derivatives_that_are_not_finite_end_soon() -> None:
    """After a few dampings: one that is too small can also overflow."""

    @caspar.factor
    def distance(point: Annotated[Spot, caspar.TunableShared]) -> sf.V1:
        return sf.V1(sf.sqrt(point[0] ** 2 + point[1] ** 2) - 1.0)

    solver = caspar.Solver([distance], backend="cpu")
    result = solver.solve({"Spot": np.zeros((1, 2)), "distance": {"point": np.zeros(1, int)}})
    assert result.status is caspar.SolveStatus.DERIVATIVES_NOT_FINITE
    assert len(result.iterations) == MAX_NOT_FINITE
    assert not result.status.is_success
    named = "distance (1 instance, first 0)"
    assert result.remarks[-1] == f"The derivatives of these factors are not finite: {named}."


def test_factors_that_are_not_finite_are_named() -> None:
    distances = np.array(VEHICLE["ranging"]["distance"], dtype=float)
    distances[7] = np.inf
    arrays = changed(VEHICLE, "ranging.distance", distances)
    result = solve_example("vehicle", arrays, check=False)
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    (remark,) = result.remarks
    assert remark == "The residuals of these factors are not finite: ranging (1 instance, first 7)."
