"""Live problems: nodes and factors come and go, and values are those of a problem made anew."""

import copy
import pickle
import threading
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar


class Station(sf.V2): ...


class Beacon(sf.V2): ...


@caspar.factor
def walk(
    start: Annotated[Station, caspar.TunableShared],
    end: Annotated[Station, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return 3 * (end - start - measured)


@caspar.factor(loss=caspar.loss.Huber)
def sight(
    station: Annotated[Station, caspar.TunableShared],
    beacon: Annotated[Beacon, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstIndexed],
    sigma: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V2:
    return (beacon - station - measured) / sigma[0]


@caspar.factor
def known(
    station: Annotated[Station, caspar.TunableShared],
    place: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return station - place


@caspar.factor
def by_position(
    station: Annotated[caspar.Pair[Station], caspar.TunablePair],
) -> sf.V2:
    return station[1] - station[0]


FACTORS = (walk, sight, known)


def _sights(rng: np.random.Generator, count: int) -> dict[str, Any]:
    values = rng.normal(size=(count, 2))
    return {
        "measured": {"values": values, "index": np.arange(count)[::-1]},
        "sigma": [0.5],
        "loss_scale": 4.0,
    }


def _problem(seed: int = 0) -> tuple[caspar.Problem, dict[str, Any]]:
    """Eight stations that see four beacons, and the ids and handles."""
    rng = np.random.default_rng(seed)
    problem = caspar.Problem(FACTORS, backend="cpu", precision="float64")
    stations = problem.add_nodes("Station", rng.normal(size=(8, 2)))
    beacons = problem.add_nodes("Beacon", rng.normal(size=(4, 2)))
    at, seen = (one.ravel() for one in np.meshgrid(np.arange(8), np.arange(4)))
    walks = problem.add_factors(
        "walk", {"start": stations[:-1], "end": stations[1:], "measured": rng.normal(size=(7, 2))}
    )
    sights = problem.add_factors(
        "sight", {"station": stations[at], "beacon": beacons[seen], **_sights(rng, 32)}
    )
    starts = problem.add_factors("known", {"station": stations[:1], "place": np.zeros((1, 2))})
    ids = {"Station": stations, "Beacon": beacons}
    return problem, {**ids, "walk": walks, "sight": sights, "known": starts}


def _solved_anew(problem: caspar.Problem, **options: Any) -> caspar.SolveResult:
    solver = caspar.Solver(FACTORS, backend="cpu", precision="float64")
    return solver.solve(problem.arrays(), **options)


def test_updates_reach_the_minimum_of_a_solve() -> None:
    problem, _ = _problem()
    expected = _solved_anew(problem)
    result = problem.update(max_iterations=50, cost_tolerance=1e-14)
    assert result.status is caspar.SolveStatus.CONVERGED_COST
    assert result.cost == pytest.approx(expected.final_cost, rel=1e-12)
    assert result.promised <= 1e-14 * result.cost
    assert result.iterations >= 1
    assert 12 <= result.relinearised <= 12 * (result.iterations + 1)
    for name, values in expected.values.items():
        assert_allclose(problem.values[name], values, atol=1e-6)


def test_solve_is_that_of_a_solver() -> None:
    problem, _ = _problem()
    expected = _solved_anew(problem)
    result = problem.solve()
    assert result.final_cost == expected.final_cost
    assert_array_equal(problem.values["Beacon"], expected.values["Beacon"])
    after = problem.update()
    assert after.iterations == 0
    assert after.cost == pytest.approx(expected.final_cost, rel=1e-12)


def test_removal_leaves_what_a_problem_without_it_has() -> None:
    problem, ids = _problem()
    problem.update()
    problem.remove_factors("sight", ids["sight"][3::7])
    problem.remove_nodes("Station", ids["Station"][[2, 5]], with_factors=True)
    problem.remove_nodes("Beacon", ids["Beacon"][1:2], with_factors=True)
    assert_array_equal(problem.ids("Station"), ids["Station"][[0, 1, 3, 4, 6, 7]])
    assert_array_equal(problem.ids("Beacon"), ids["Beacon"][[0, 2, 3]])
    # walks 2-3 and 5-6 remain without those nodes: 0-1, 3-4, 6-7
    assert_array_equal(problem.handles("walk"), ids["walk"][[0, 3, 6]])
    result = problem.update(max_iterations=50, cost_tolerance=1e-14)
    expected = _solved_anew(problem)
    assert result.cost == pytest.approx(expected.final_cost, rel=1e-10)


def test_a_graph_that_grows_ends_where_a_solver_does() -> None:
    problem, ids = _problem()
    problem.update(max_iterations=20, cost_tolerance=1e-14)
    rng = np.random.default_rng(3)
    last = ids["Station"][-1:]
    for _ in range(5):
        new = problem.add_nodes("Station", rng.normal(size=(1, 2)))
        given = {"start": last, "end": new, "measured": rng.normal(size=(1, 2))}
        problem.add_factors("walk", given)
        problem.add_factors(
            "sight", {"station": new, "beacon": ids["Beacon"][:1], **_sights(rng, 1)}
        )
        last = new
        problem.update(cost_tolerance=1e-3)
    result = problem.update(max_iterations=50, cost_tolerance=1e-14)
    assert result.cost == pytest.approx(_solved_anew(problem).final_cost, rel=1e-12)


def test_numbers_are_never_used_twice() -> None:
    problem, ids = _problem()
    problem.remove_nodes("Beacon", ids["Beacon"], with_factors=True)
    assert problem.handles("sight").size == 0
    again = problem.add_nodes("Beacon", np.zeros((2, 2)))
    assert_array_equal(again, [4, 5])
    with pytest.raises(caspar.errors.InputError, match="id 3 of node type Beacon was removed"):
        problem.values_of("Beacon", [3])


def test_held_nodes_and_components_stay() -> None:
    problem, ids = _problem()
    start = problem.values
    problem.set_fixed("Beacon", ids["Beacon"][1:3])
    mask = np.zeros((8, 2), bool)
    mask[4, 1] = True
    problem.set_fixed("Station", mask)
    problem.update(max_iterations=50, cost_tolerance=1e-14)
    after = problem.values
    assert_array_equal(after["Beacon"][1:3], start["Beacon"][1:3])
    assert after["Station"][4, 1] == start["Station"][4, 1]
    held = {"Beacon": [1, 2], "Station": mask}
    solver = caspar.Solver(FACTORS, backend="cpu", precision="float64")
    expected = solver.solve({**problem.arrays(), **start}, fixed=held)
    assert_allclose(after["Station"], expected.values["Station"], atol=1e-6)
    problem.set_fixed("Beacon", False)
    problem.update(max_iterations=50, cost_tolerance=1e-14)
    assert (problem.values["Beacon"][1] != start["Beacon"][1]).all()


def test_arguments_and_values_can_be_set() -> None:
    problem, ids = _problem()
    problem.update()
    weights = np.zeros(32)
    weights[::2] = 2.0
    problem.set_arguments("sight", ids["sight"], {"weight": weights, "sigma": [0.25]})
    problem.set_arguments("walk", ids["walk"][2:3], {"measured": [[5.0, 0.0]]})
    problem.set_values("Beacon", ids["Beacon"][3:], [[9.0, 9.0]])
    assert_array_equal(problem.values_of("Beacon", ids["Beacon"][3:]), [[9.0, 9.0]])
    arrays = problem.arrays()
    assert_array_equal(arrays["sight"]["weight"], weights)
    assert_array_equal(arrays["sight"]["sigma"], [0.25])
    assert_array_equal(arrays["walk"]["measured"][2], [5.0, 0.0])
    result = problem.update(max_iterations=50, cost_tolerance=1e-14)
    assert result.cost == pytest.approx(_solved_anew(problem).final_cost, rel=1e-10)


def test_an_instance_of_weight_zero_may_have_no_residual() -> None:
    problem, ids = _problem()
    before = problem.update(max_iterations=50, cost_tolerance=1e-14).cost
    far = problem.add_nodes("Beacon", [[1e200, 0.0]])
    given = {"station": ids["Station"][:1], "beacon": far, **_sights(np.random.default_rng(0), 1)}
    problem.add_factors("sight", {**given, "weight": [0.0]})
    assert problem.update().cost == pytest.approx(before, rel=1e-12)


def test_covariances_are_those_of_a_solver() -> None:
    problem, ids = _problem()
    result = problem.solve()
    solver = caspar.Solver(FACTORS, backend="cpu", precision="float64")
    arrays = {**problem.arrays(), **result.values}
    expected = solver.covariance(arrays, {"Station": [2, 7], "Beacon": "all"})
    found = problem.covariance({"Station": ids["Station"][[7, 2]], "Beacon": "all"})
    assert_allclose(found["Beacon"], expected["Beacon"], rtol=1e-9, atol=1e-12)
    assert_allclose(found["Station"], expected["Station"][[1, 0]], rtol=1e-9, atol=1e-12)


def test_a_free_direction_has_no_covariance() -> None:
    problem, ids = _problem()
    problem.remove_factors("known", ids["known"])
    with pytest.raises(caspar.errors.RankDeficiencyError, match="set_fixed"):
        problem.covariance({"Beacon": "all"})
    # but the rest has a minimum
    assert problem.update(max_iterations=50).status.is_success


def test_pickles_and_copies_go_on_by_themselves() -> None:
    problem, ids = _problem()
    problem.update()
    problem.marginalize("Station", ids["Station"][:1])
    for copied in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert_array_equal(copied.ids("Station"), problem.ids("Station"))
        assert copied.add_nodes("Beacon", [[0.0, 0.0]]) == [4]
        copied.update(max_iterations=30, cost_tolerance=1e-14)
    assert len(problem.ids("Beacon")) == 4
    found = problem.update(max_iterations=30, cost_tolerance=1e-14)
    assert_allclose(copied.values["Station"], problem.values["Station"], atol=1e-6)
    assert found.status.is_success


def test_threads_wait_for_each_other() -> None:
    problem, ids = _problem()
    rng = np.random.default_rng(1)

    def add() -> None:
        for _ in range(20):
            new = problem.add_nodes("Station", rng.normal(size=(1, 2)))
            given = {"start": ids["Station"][:1], "end": new, "measured": np.ones((1, 2))}
            problem.add_factors("walk", given)

    adding = threading.Thread(target=add, daemon=True)
    adding.start()
    while adding.is_alive():
        problem.update()
    adding.join(60.0)
    result = problem.update(max_iterations=50, cost_tolerance=1e-14)
    assert result.cost == pytest.approx(_solved_anew(problem).final_cost, rel=1e-10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.add_nodes("Statoin", [[0.0, 0.0]]), "'Station'"),
        (lambda p: p.add_nodes("Station", [[0.0]]), r"expected \(n, 2\)"),
        (lambda p: p.add_nodes("Station", [[0.0, np.nan]]), "must be finite"),
        (lambda p: p.add_factors("walks", {}), "'walk'"),
        (lambda p: p.add_factors("known", {"station": [0]}), "'place' is missing"),
        (
            lambda p: p.add_factors("known", {"station": [99], "place": [[0.0, 0.0]]}),
            "id 99 of node type Station was never given out",
        ),
        (
            lambda p: p.add_factors("known", {"station": [0.5], "place": [[0.0, 0.0]]}),
            "expected ids",
        ),
        (
            lambda p: p.add_factors("known", {"station": [0, 1], "place": [[0.0, 0.0]]}),
            "differ in length",
        ),
        (lambda p: p.remove_factors("walk", [3, 3]), "handle 3 of factor walk is repeated"),
        (lambda p: p.remove_nodes("Beacon", [0]), "first handle 0; .* use marginalize"),
        (lambda p: p.set_values("Beacon", [0, 1], [[0.0, 0.0]]), "1 rows for 2 ids"),
        (lambda p: p.set_fixed("Beacon", [True]), r"booleans of shape \(1,\)"),
        (lambda p: p.set_arguments("walk", [0], {"station": [[0.0]]}), "none of its constants"),
        (
            lambda p: p.set_arguments("sight", [0], {"sigma": [1.0]}),
            "argument sigma: all instances share it",
        ),
        (lambda p: p.set_arguments("sight", [0], {"weight": [-1.0]}), "weights are 0 or more"),
        (lambda p: p.update(max_iterations=0), "max_iterations=0"),
        (lambda p: p.remove_gaussian(3), "no Gaussian has handle 3"),
        (lambda p: p.solve(max_iteration=3), "max_iterations"),
    ],
)
def test_an_error_changes_nothing(call: Any, words: str) -> None:
    problem, _ = _problem()
    before = pickle.dumps((problem.values, problem.arrays(), problem.handles("walk")))
    with pytest.raises(caspar.errors.CasparError, match=words):
        call(problem)
    assert pickle.dumps((problem.values, problem.arrays(), problem.handles("walk"))) == before


def test_a_shared_constant_stays_the_same() -> None:
    problem, ids = _problem()
    given = _sights(np.random.default_rng(0), 1) | {"sigma": [0.75]}
    given |= {"station": ids["Station"][:1], "beacon": ids["Beacon"][:1]}
    with pytest.raises(caspar.errors.InputError, match=r"argument sigma: all instances share it"):
        problem.add_factors("sight", given)
    assert len(problem.handles("sight")) == 32
    assert len(problem.arrays()["sight"]["station"]) == 32


def test_nodes_by_position_are_refused() -> None:
    with pytest.raises(caspar.errors.InputError, match="mark it with TunableShared"):
        caspar.Problem([by_position], backend="cpu")


def test_values_without_a_cost_stay_where_they_are() -> None:
    problem, ids = _problem()
    problem.set_values("Station", ids["Station"][:1], [[1e200, 0.0]])
    before = problem.values
    assert problem.update().status is caspar.SolveStatus.INITIAL_COST_NOT_FINITE
    assert_array_equal(problem.values["Station"], before["Station"])


def test_a_solve_takes_bounds() -> None:
    """Those of the call, nodes in the order of ids; what is said elsewhere is refused."""
    problem = caspar.Problem(known, backend="cpu", precision="float64")
    ids = problem.add_nodes("Station", [[0.0, 0.0], [1.0, 1.0]])
    problem.add_factors("known", {"station": ids, "place": [[3.0, 0.5], [4.0, 4.0]]})
    result = problem.solve(bounds={"Station": ([[-1.0, -1.0], [0.0, 0.0]], 2.0)})
    assert_allclose(problem.values["Station"], [[2.0, 0.5], [2.0, 2.0]], atol=1e-6)
    assert result.active_bounds["Station"].tolist() == [[1, 0], [1, 1]]
    with pytest.raises(caspar.errors.OptionError, match="set_fixed"):
        problem.solve(fixed={"Station": [0]})  # type: ignore[call-arg]
    walking = caspar.Problem([walk, known], backend="cpu", precision="float64")
    ids = walking.add_nodes("Station", [[0.0, 0.0], [1.0, 1.0]])
    walking.add_factors("walk", {"start": ids[:1], "end": ids[1:], "measured": [[1.0, 0.0]]})
    walking.add_factors("known", {"station": ids[:1], "place": [[0.0, 0.0]]})
    walking.marginalize("Station", ids[:1])
    with pytest.raises(caspar.errors.OptionError, match="bounds"):
        walking.solve(bounds={"Station": (0.0, 2.0)})


@caspar.constraint(kind="zero")
def rod(
    start: Annotated[Station, caspar.TunableShared],
    end: Annotated[Station, caspar.TunableShared],
    length: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """Two stations are so far apart."""
    return sf.V1((end - start).squared_norm() - length**2)


def test_a_solve_keeps_constraints() -> None:
    """Their instances come and go like those of factors; what does not keep them is refused."""
    problem = caspar.Problem([known, rod], backend="cpu", precision="float64")
    ids = problem.add_nodes("Station", [[0.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
    places = [[0.0, 0.0], [1.0, 1.0], [3.0, 0.0]]
    problem.add_factors("known", {"station": ids, "place": places})
    rods = problem.add_factors(
        "rod", {"start": ids[:2], "end": ids[1:], "length": np.array([2.0, 1.0])}
    )
    result = problem.solve()
    assert result.status.is_success
    assert result.multipliers["rod"].shape == (2, 1)
    lengths = np.linalg.norm(np.diff(problem.values["Station"], axis=0), axis=1)
    assert_allclose(lengths, [2.0, 1.0], atol=1e-9)
    for call in (
        problem.update,
        lambda: problem.covariance({"Station": ids}),
        lambda: problem.marginalize("Station", ids[:1]),
    ):
        with pytest.raises(caspar.errors.InputError, match="instances of constraint rod"):
            call()
    problem.set_arguments("rod", rods[1:], {"length": np.array([1.5])})
    problem.remove_factors("rod", rods[:1])
    problem.solve()
    assert np.linalg.norm(problem.values["Station"][2] - problem.values["Station"][1]) == (
        pytest.approx(1.5, abs=1e-9)
    )
    problem.marginalize("Station", ids[:1])  # no rod touches it any more
    copy = pickle.loads(pickle.dumps(problem))
    copy.remove_factors("rod", rods[1:])
    assert copy.update(max_iterations=5).status.is_success
    with pytest.raises(caspar.errors.InputError, match="weight"):
        problem.add_factors(
            "rod", {"start": ids[1:2], "end": ids[2:], "length": [1.0], "weight": [2.0]}
        )
