"""Linear equations between unknowns, against closed forms; what contradicts and what repeats."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar import SolveStatus
from caspar.errors import FactorError, InputError, OptionError


class Place(sf.V1): ...


@caspar.factor
def prior(
    place: Annotated[Place, caspar.TunableShared],
    measured: Annotated[sf.V1, caspar.ConstSequential],
    root: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(root[0] * (place[0] - measured[0]))


@caspar.constraint(kind="zero")
def apart(
    first: Annotated[Place, caspar.TunableShared],
    second: Annotated[Place, caspar.TunableShared],
    distance: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(first[0] - second[0] - distance[0])


@caspar.constraint(kind="positive")
def at_least(
    place: Annotated[Place, caspar.TunableShared],
    least: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(place[0] - least[0])


SOLVER = caspar.Solver([prior, apart], backend="cpu")
WITH_LIMITS = caspar.Solver([prior, apart, at_least], backend="cpu")

NUM, TIED = 24, 10


def drawn(seed: int, unit: float) -> dict[str, Any]:
    """Places with priors of weights far apart, some of them tied in pairs."""
    rng = np.random.default_rng(seed)
    first = rng.permutation(NUM // 2)[:TIED]
    return {
        "Place": np.zeros((NUM, 1)),
        "prior": {
            "place": np.arange(NUM),
            "measured": unit * rng.normal(size=(NUM, 1)),
            "root": 10.0 ** rng.uniform(-3.0, 3.0, (NUM, 1)) / unit,
        },
        "apart": {
            "first": first,
            "second": first + NUM // 2,
            "distance": unit * rng.normal(size=(TIED, 1)),
        },
    }


def exact(arrays: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places and multipliers: the closed form of two places that one equation ties."""
    measured, root = arrays["prior"]["measured"][:, 0], arrays["prior"]["root"][:, 0]
    first, second = arrays["apart"]["first"], arrays["apart"]["second"]
    distance = arrays["apart"]["distance"][:, 0]
    places = measured.copy()
    # the first one gets the mean of what both priors say of it, by their weights
    share = 1.0 / (1.0 + (root[second] / root[first]) ** 2)
    other = 1.0 / (1.0 + (root[first] / root[second]) ** 2)
    places[first] = measured[first] * share + (measured[second] + distance) * other
    places[second] = (measured[first] - distance) * share + measured[second] * other
    # the derivative of the cost by the distance
    pull = root[second] ** 2 * share * (measured[second] + distance - measured[first])
    return places, pull


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("seed", range(3))
def test_ties_between_priors_of_weights_far_apart(seed: int, unit: float) -> None:
    arrays = drawn(seed, unit)
    result = SOLVER.solve(arrays)
    places, multipliers = exact(arrays)
    assert result.status.is_success
    assert len(result.iterations) <= 10
    assert result.values["Place"][:, 0] == pytest.approx(places, rel=1e-12, abs=1e-12 * unit)
    largest = np.abs(multipliers).max()
    found = result.multipliers["apart"][:, 0]
    assert found == pytest.approx(multipliers, rel=1e-9, abs=1e-12 * largest)
    assert result.violation is not None
    assert result.violation.unscaled <= 4e-15 * unit
    assert set(result.costs) == {"prior"}
    assert result.problem.num_residuals == NUM
    assert result.problem.factors == {"prior": NUM, "apart": TIED}
    ends = SOLVER.evaluate({**arrays, **result.values})
    assert result.final_cost == pytest.approx(ends.cost, rel=1e-12)
    assert np.array_equal(result.residuals("apart"), ends.residuals("apart"))
    assert np.abs(ends.residuals("apart")).max() == result.violation.unscaled


def test_multipliers_are_derivatives_of_the_cost() -> None:
    arrays = drawn(0, 1.0)
    result = SOLVER.solve(arrays)
    step = 1e-4
    # c = first - second - distance: its right-hand side grows with the distance
    arrays["apart"]["distance"][3] += step
    after = SOLVER.solve(arrays)
    change = (after.final_cost - result.final_cost) / step
    middle = 0.5 * (result.multipliers["apart"][3, 0] + after.multipliers["apart"][3, 0])
    assert change == pytest.approx(middle, rel=1e-6)


def test_repeated_equations_are_remarked() -> None:
    arrays = drawn(1, 1.0)
    places, _ = exact(arrays)
    tied = arrays["apart"]
    arrays["apart"] = {name: np.concatenate([rows, rows[:4]]) for name, rows in tied.items()}
    result = SOLVER.solve(arrays)
    assert result.status.is_success
    assert result.values["Place"][:, 0] == pytest.approx(places, rel=1e-12, abs=1e-12)
    assert any("4 of 14 active entries" in remark for remark in result.remarks)


def test_contradictions_are_named() -> None:
    arrays = drawn(2, 1.0)
    tied = arrays["apart"]
    arrays["apart"] = {name: np.concatenate([rows, rows[2:3]]) for name, rows in tied.items()}
    arrays["apart"]["distance"][TIED] += 1.0
    result = SOLVER.solve(arrays)
    assert result.status is SolveStatus.INFEASIBLE
    assert not result.status.is_success
    assert result.violation is not None
    assert result.violation.unscaled == pytest.approx(0.5, rel=1e-3)
    (remark,) = (one for one in result.remarks if "does not hold" in one)
    assert "constraint apart does not hold: instance" in remark
    assert "2 (by 0.5)" in remark
    assert "10 (by 0.5)" in remark


def test_what_is_held_may_contradict() -> None:
    arrays = drawn(2, 1.0)
    first, second = arrays["apart"]["first"][5], arrays["apart"]["second"][5]
    result = SOLVER.solve(arrays, fixed={"Place": np.array([first, second])})
    assert result.status is SolveStatus.INFEASIBLE
    assert "does not hold: instance 5" in result.remarks[0]


def test_inequalities_bind_or_do_not() -> None:
    arrays = drawn(0, 1.0)
    places, _ = exact(arrays)
    free = np.setdiff1d(np.arange(NUM), np.concatenate(list(arrays["apart"].values())[:2]))
    least = places[free] + np.where(np.arange(len(free)) % 2 == 0, 0.5, -0.5)
    arrays["at_least"] = {"place": free, "least": least[:, None]}
    result = WITH_LIMITS.solve(arrays)
    assert result.status.is_success
    ends = places.copy()
    ends[free] = np.maximum(places[free], least)
    assert result.values["Place"][:, 0] == pytest.approx(ends, rel=1e-12, abs=1e-12)
    root = arrays["prior"]["root"][free, 0]
    pull = root**2 * (ends[free] - places[free])
    found = result.multipliers["at_least"][:, 0]
    assert found == pytest.approx(pull, rel=1e-9, abs=1e-12 * pull.max())


def test_constraints_without_instances() -> None:
    arrays = drawn(0, 1.0)
    arrays["at_least"] = {"place": [], "least": []}
    result = WITH_LIMITS.solve(arrays)
    places, _ = exact(arrays)
    assert result.values["Place"][:, 0] == pytest.approx(places, rel=1e-12, abs=1e-12)
    assert result.multipliers["at_least"].shape == (0, 1)
    assert result.residuals("at_least").shape == (0, 1)
    arrays["apart"] = {"first": [], "second": [], "distance": []}
    alone = WITH_LIMITS.solve(arrays)
    assert alone.status.is_success
    measured = arrays["prior"]["measured"]
    assert alone.values["Place"] == pytest.approx(measured, rel=1e-12, abs=1e-12)


def test_constraints_alone_find_values() -> None:
    solver = caspar.Solver(apart, backend="cpu")
    tied = np.arange(TIED)
    arrays = drawn(0, 1.0)
    arrays["apart"] |= {"first": tied, "second": tied + TIED}
    result = solver.solve({"Place": arrays["Place"][: 2 * TIED], "apart": arrays["apart"]})
    assert result.status.is_success
    assert result.final_cost == 0.0
    assert result.violation is not None
    assert result.violation.unscaled <= 1e-15


def test_outliers_beside_equations() -> None:
    arrays = drawn(3, 1.0)
    arrays["prior"]["root"] = np.ones((NUM, 1))
    doubled = {name: np.concatenate([rows, rows]) for name, rows in arrays["prior"].items()}
    doubled["measured"][NUM : NUM + 3] += 50.0
    places, _ = exact(arrays)
    found = caspar.solve_gnc(SOLVER, {**arrays, "prior": doubled}, inlier_threshold={"prior": 5.0})
    assert np.flatnonzero(~found.inliers["prior"]).tolist() == [NUM, NUM + 1, NUM + 2]
    assert found.result.violation is not None
    assert found.result.violation.unscaled <= 1e-12
    tied = np.concatenate([arrays["apart"]["first"], arrays["apart"]["second"]])
    untied = np.setdiff1d(np.arange(NUM), tied)
    assert found.values["Place"][untied, 0] == pytest.approx(places[untied], abs=1e-9)


def test_limits_end_the_loop() -> None:
    arrays = drawn(0, 1.0)
    result = SOLVER.solve(arrays, max_iterations=1)
    assert result.status is SolveStatus.ITERATION_LIMIT
    assert len(result.iterations) == 1
    stopped = SOLVER.solve(arrays, on_iteration=lambda record: True)
    assert stopped.status is SolveStatus.STOPPED


def test_bad_input_is_named() -> None:
    arrays = drawn(0, 1.0)
    wrong = {**arrays, "apart": {**arrays["apart"], "weight": np.ones(TIED)}}
    with pytest.raises(InputError, match="constraint apart: 'weight' is given"):
        SOLVER.solve(wrong)
    nan = arrays["apart"]["distance"].copy()
    nan[4] = np.nan
    with pytest.raises(InputError, match="factor apart, argument distance"):
        SOLVER.solve({**arrays, "apart": {**arrays["apart"], "distance": nan}})
    with pytest.raises(OptionError, match="constraint_tolerance=-1"):
        SOLVER.solve(arrays, constraint_tolerance=-1.0)
    alone = caspar.Solver(prior, backend="cpu")
    plain = {"Place": arrays["Place"], "prior": arrays["prior"]}
    with pytest.raises(OptionError, match="has no constraints"):
        alone.solve(plain, constraint_tolerance=1e-6)


def test_what_is_not_finite_is_named() -> None:
    @caspar.constraint(kind="zero")
    def rooted(place: Annotated[Place, caspar.TunableShared]) -> sf.V1:
        return sf.V1(sf.sqrt(place[0]) - 1)

    solver = caspar.Solver([prior, rooted], backend="cpu")
    arrays = drawn(0, 1.0)
    start = np.where(np.arange(NUM) == 7, -1.0, 1.0)[:, None]
    result = solver.solve(
        {"Place": start, "prior": arrays["prior"], "rooted": {"place": np.arange(NUM)}}
    )
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert "rooted (1 instance, first 7)" in result.remarks[0]
    assert result.violation is not None
    assert np.isnan(result.violation.scaled)
    assert result.violation.instance == 7


def test_what_is_not_there_yet_is_refused() -> None:
    ranks = object.__new__(caspar.distributed.Ranks)
    with pytest.raises(FactorError, match="several ranks does not take constraints yet: apart"):
        caspar.Solver([prior, apart], backend="cpu", devices=ranks)
    with pytest.raises(FactorError, match="has no loss"):
        apart.with_loss(caspar.loss.Huber)


def test_constraints_of_constants_are_refused() -> None:
    @caspar.constraint(kind="zero")
    def idle(
        place: Annotated[Place, caspar.TunableShared],
        value: Annotated[sf.V1, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(value[0])

    with (
        pytest.warns(UserWarning, match="does not depend on it"),
        pytest.raises(FactorError, match="constraint idle: it depends on no unknown"),
    ):
        caspar.Solver([prior, idle], backend="cpu")
    with pytest.raises(OptionError, match="kind='equal'"):
        caspar.constraint(kind="equal")
