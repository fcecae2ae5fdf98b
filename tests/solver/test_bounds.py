"""Bounds hold, and a bounded solve ends where SciPy's does."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal
from scipy.optimize import least_squares, lsq_linear
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import InputError
from caspar.options import BackendName, LinearSolverName, PrecisionName
from tests.solver.solving import ON_BACKENDS
from tests.solver.test_fixed import (
    ARRAYS,
    MARKS,
    METHODS,
    NUM_MARKS,
    NUM_VIEWS,
    SIGHTINGS,
    TIGHT,
    VIEWS,
    robust_sighting,
    sighting,
)
from tests.support_cudss import require_library

FIXED = {"View": {"pose": [0]}, "Mark": [3, 5]}
"""Removes the gauge, so that bounds cannot be evaded by moving everything."""

FOCAL = (499.0, 502.0)
HEIGHT = 0.02
"""How far marks may move up or down."""

_LENS = (np.array([FOCAL[0], -0.12, -np.inf]), np.array([FOCAL[1], -0.11, np.inf]))
BOUNDS: Mapping[str, Any] = {
    "View": {"lens": _LENS, "pose": {"translation": (VIEWS[:, 4:7] - 0.01, None)}},
    "Mark": (
        np.column_stack([np.full((NUM_MARKS, 2), -np.inf), MARKS[:, 2] - HEIGHT]),
        np.column_stack([np.full((NUM_MARKS, 2), np.inf), MARKS[:, 2] + HEIGHT]),
    ),
}
"""On the type that stays and on the one that is eliminated, with all ways to write them."""

START = {**ARRAYS, "View": np.where(np.arange(10) == 8, -0.115, VIEWS)}
START["View"][:, 7] = 501.0


def _limits() -> tuple[np.ndarray, np.ndarray]:
    """Of all unknowns of `_expected`: rotation, translation, lens of views 1.., marks."""
    ones = np.ones((NUM_VIEWS, 3))
    lower = [np.hstack([-np.inf * ones, VIEWS[:, 4:7] - 0.01, ones * _LENS[0]]).ravel()]
    upper = [np.hstack([np.inf * ones, np.inf * ones, ones * _LENS[1]]).ravel()]
    lower.append(np.ravel(BOUNDS["Mark"][0]))
    upper.append(np.ravel(BOUNDS["Mark"][1]))
    return np.concatenate(lower), np.concatenate(upper)


def _residuals(unknowns: np.ndarray, arrays: Mapping[str, Any]) -> np.ndarray:
    views = unknowns[: 9 * NUM_VIEWS].reshape(NUM_VIEWS, 9)
    marks = unknowns[9 * NUM_VIEWS :].reshape(NUM_MARKS, 3)
    turned = Rotation.from_quat(arrays["View"][:, :4]) * Rotation.from_rotvec(views[:, :3])
    view, mark = SIGHTINGS["view"], SIGHTINGS["mark"]
    place = turned[view].inv().apply(marks[mark] - views[view, 3:6])
    ray = place[:, :2] / place[:, 2:]
    square = (ray**2).sum(axis=1)
    lens = views[view, 6:]
    scale = lens[:, 0] * (1 + lens[:, 1] * square + lens[:, 2] * square**2)
    return np.asarray((scale[:, None] * ray - SIGHTINGS["pixel"]).ravel())


@pytest.fixture(scope="module")
def expected() -> float:
    """The cost at which SciPy ends."""
    start = np.concatenate(
        [
            np.hstack([np.zeros((NUM_VIEWS, 3)), START["View"][:, 4:]]).ravel(),
            MARKS.ravel(),
        ]
    )
    moves = np.ones(len(start), bool)
    moves[:6] = False
    for mark in FIXED["Mark"]:
        first = 9 * NUM_VIEWS + 3 * mark  # type: ignore[operator]
        moves[first : first + 3] = False
    lower, upper = _limits()

    def residuals(moved: np.ndarray) -> np.ndarray:
        unknowns = start.copy()
        unknowns[moves] = moved
        return _residuals(unknowns, START)

    def jacobian(moved: np.ndarray) -> np.ndarray:
        """Central differences of one component of all views, or of all marks, at a time."""
        unknowns = start.copy()
        unknowns[moves] = moved
        found = np.zeros((len(SIGHTINGS["pixel"]) * 2, len(start)))
        rows = np.arange(len(found))
        kinds = ((0, 9, SIGHTINGS["view"]), (9 * NUM_VIEWS, 3, SIGHTINGS["mark"]))
        for first, dim, index in kinds:
            for component in range(dim):
                owner = np.repeat(first + dim * index + component, 2)
                step = np.zeros(len(start))
                step[np.unique(owner)] = 1e-6
                ahead, behind = (_residuals(unknowns + s * step, START) for s in (1.0, -1.0))
                found[rows, owner] = (ahead - behind) / 2e-6
        return found[:, moves]

    rounding = 1e-15
    found = least_squares(
        residuals,
        start[moves],
        jacobian,
        bounds=(lower[moves], upper[moves]),
        x_scale="jac",
        xtol=rounding,
        ftol=rounding,
        gtol=rounding,
    )
    return float(found.cost)


def _solve(
    bounds: Any = BOUNDS,
    backend: BackendName = "cpu",
    precision: PrecisionName = "float64",
    **choices: Any,
) -> caspar.SolveResult:
    made = caspar.Solver(sighting, backend=backend, precision=precision, **choices)
    return made.solve(START, fixed=FIXED, bounds=bounds, verbose=False, **TIGHT)


def _assert_within(result: caspar.SolveResult) -> None:
    views, marks = result.values["View"], result.values["Mark"]
    assert (views[:, 7:9] >= _LENS[0][:2]).all()
    assert (views[:, 7:9] <= _LENS[1][:2]).all()
    assert (views[:, 4:7] >= VIEWS[:, 4:7] - 0.01).all()
    assert (np.abs(marks[:, 2] - MARKS[:, 2]) <= HEIGHT).all()


@ON_BACKENDS
@pytest.mark.parametrize("method", METHODS)
def test_all_linear_methods(method: str, backend: BackendName, expected: float) -> None:
    require_library(method, backend)
    result = _solve(backend=backend, **METHODS[method])
    assert result.status.is_success
    assert result.final_cost == pytest.approx(expected, rel=1e-7)
    _assert_within(result)
    views, marks = result.values["View"], result.values["Mark"]
    assert_array_equal(views[0, :7], VIEWS[0, :7])
    assert_array_equal(marks[[3, 5]], MARKS[[3, 5]])
    active = result.active_bounds
    assert (active["View"].shape, active["Mark"].shape) == (views.shape, marks.shape)
    # some of each kind bind, and what is marked is at its bound to the bit
    assert (active["View"][:, 7] == 1).sum() + (active["View"][:, 7] == -1).sum() >= 1
    assert (active["View"][:, 8] != 0).any()
    assert 3 <= (active["Mark"] != 0).sum() < NUM_MARKS
    assert_array_equal(views[active["View"][:, 7] == 1, 7], FOCAL[1])
    assert_array_equal(views[active["View"][:, 7] == -1, 7], FOCAL[0])
    assert "at a bound" in str(result)


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_single_precision_stays_within(
    precision: PrecisionName, backend: BackendName, expected: float
) -> None:
    """Bounds are rounded inwards, so that the given ones hold in float64."""
    result = _solve(backend=backend, precision=precision)
    assert result.final_cost == pytest.approx(expected, rel=2e-5)
    _assert_within(result)
    assert_array_equal(result.values["View"][0, :7], VIEWS[0, :7])


def _multipliers_agree(result: caspar.SolveResult, arrays: Mapping[str, Any], made: Any) -> None:
    """What is active is held there, and is where the rest would not stay if it were not."""
    held = {name: marks[:, -3:] != 0 for name, marks in result.active_bounds.items()}
    views = np.zeros((NUM_VIEWS, 9), bool)
    views[:, 3:] = result.active_bounds["View"][:, 4:] != 0
    views[0, :6] = True
    marks = held["Mark"]
    marks[[3, 5]] = True
    after = {**arrays, **result.values}
    again = made.solve(after, fixed={"View": views, "Mark": marks}, verbose=False, **TIGHT)
    assert again.final_cost == pytest.approx(result.final_cost, rel=1e-11)
    free = made.solve(after, fixed=FIXED, verbose=False, **TIGHT)
    assert free.final_cost < result.final_cost * (1.0 - 1e-3)


@ON_BACKENDS
def test_with_weights_and_a_loss(backend: BackendName) -> None:
    random = np.random.default_rng(1)
    weight = random.uniform(0.5, 2.0, len(SIGHTINGS["view"]))
    weight[[0, 20, 41, 77]] = 0.0
    given = {**SIGHTINGS, "weight": weight, "loss_scale": 2.0}
    arrays = {"View": START["View"], "Mark": MARKS, "robust_sighting": given}
    made = caspar.Solver(robust_sighting, backend=backend, precision="float64")
    result = made.solve(arrays, fixed=FIXED, bounds=BOUNDS, verbose=False, **TIGHT)
    assert result.status.is_success
    _assert_within(result)
    _multipliers_agree(result, arrays, made)


def test_without_inner_iterations(expected: float) -> None:
    result = _solve(inner_iterations=0, linear_solver="schur_dense")
    assert result.final_cost == pytest.approx(expected, rel=1e-9)


@ON_BACKENDS
def test_other_bounds_make_nothing_new(backend: BackendName) -> None:
    made = caspar.Solver(sighting, backend=backend, precision="float64")
    made.prepare(START, fixed=FIXED, bounds=BOUNDS)
    made.solve(START, fixed=FIXED, bounds=BOUNDS)
    other = {"Mark": (MARKS - 0.001, MARKS + 0.002), "View": {"lens": (None, 502.0)}}
    with made.system(START, bounds=BOUNDS) as first:
        pass
    result = made.solve(START, bounds=other)
    assert result.compile_time_s == 0.0
    assert (result.values["Mark"] <= MARKS + 0.002).all()
    with made.system(START, bounds=other) as second:
        assert second is first


@ON_BACKENDS
def test_open_bounds_are_the_usual_solve(backend: BackendName) -> None:
    made = caspar.Solver(sighting, backend=backend, precision="float64")
    usual = made.solve(START, fixed=FIXED, **TIGHT)
    result = made.solve(START, fixed=FIXED, bounds={"Mark": (None, np.inf)}, **TIGHT)
    assert result.final_cost == pytest.approx(usual.final_cost, rel=1e-13)
    assert not result.active_bounds["Mark"].any()
    assert "bounds" not in str(result)


@ON_BACKENDS
def test_equal_bounds_hold(backend: BackendName) -> None:
    made = caspar.Solver(sighting, backend=backend, precision="mixed")
    focal = START["View"][:, 7:8]
    lens = (np.hstack([focal, np.full((NUM_VIEWS, 2), -9.0)]), np.hstack([focal, focal, focal]))
    result = made.solve(START, bounds={"View": {"lens": lens}, "Mark": (MARKS, MARKS)})
    assert_array_equal(result.values["View"][:, 7:8], focal)
    assert_array_equal(result.values["Mark"], MARKS)
    assert result.problem.held == {"View": NUM_VIEWS, "Mark": MARKS.size}
    assert result.problem.num_unknowns == 8 * NUM_VIEWS
    assert (result.active_bounds["Mark"] == 0).all()


class Rate(sf.V1):
    """A decay."""


class Level(sf.V1):
    """A response."""


@dataclasses.dataclass
class Decay:
    """Its parameters."""

    height: sf.Scalar
    rate: Rate


@caspar.factor
def decayed(
    decay: Annotated[Decay, caspar.TunableUnique],
    time: Annotated[Rate, caspar.ConstSequential],
    level: Annotated[Level, caspar.ConstSequential],
) -> sf.V1:
    """A response over time."""
    return sf.V1(decay.height * sf.exp(-decay.rate[0] * time[0]) - level[0])


TIME = np.linspace(0.0, 3.0, 30)
LEVEL = 2.0 * np.exp(-1.5 * TIME) + 0.1 * np.sin(9.0 * TIME)


def _fit(bounds: Any, start: Any = (1.0, 1.0), backend: Any = "cpu") -> caspar.SolveResult:
    made = caspar.Solver(decayed, backend=backend)
    arrays = {"Decay": np.array([start]), "decayed": {"time": TIME, "level": LEVEL}}
    return made.solve(arrays, bounds=bounds, verbose=False)


def _fit_by_scipy(lower: Any, upper: Any) -> Any:
    return least_squares(
        lambda x: x[0] * np.exp(-x[1] * TIME) - LEVEL,
        [1.0, 1.0],
        bounds=(lower, upper),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )


@pytest.mark.parametrize(
    ("bounds", "lower", "upper"),
    [
        ({"height": (0, 1.5)}, [0, -np.inf], [1.5, np.inf]),
        ({"rate": (None, 1.25)}, [-np.inf, -np.inf], [np.inf, 1.25]),
        ({"height": (0.5, 1.75), "rate": ([1.0], [1.25])}, [0.5, 1.0], [1.75, 1.25]),
        ({"height": (0, 9), "rate": (0, 9)}, [0, 0], [9, 9]),
    ],
)
def test_a_fit(bounds: Any, lower: Any, upper: Any) -> None:
    result, other = _fit({"Decay": bounds}), _fit_by_scipy(lower, upper)
    assert result.status.is_success
    np.testing.assert_allclose(result.values["Decay"][0], other.x, rtol=1e-7)
    assert result.final_cost == pytest.approx(other.cost, rel=1e-12)
    assert result.remaining_decrease < 1e-12


def test_the_report_names_what_is_at_a_bound() -> None:
    result = _fit({"Decay": {"height": (0, 1.5), "rate": (None, 9.0)}})
    assert "bounds        1 of 2 of Decay at a bound: Decay height at its upper" in str(result)
    assert_array_equal(result.active_bounds["Decay"], [[1, 0]])


def test_a_start_at_a_bound_comes_off_it() -> None:
    result = _fit({"Decay": {"height": (1.0, 9.0), "rate": (-9.0, 1.0)}})
    other = _fit_by_scipy([1.0, -9.0], [9.0, 1.0 + 1e-15])
    assert result.final_cost == pytest.approx(other.cost, rel=1e-9)
    assert_array_equal(result.active_bounds["Decay"], [[0, 1]])


def test_a_corner_is_a_minimum_at_once() -> None:
    result = _fit({"Decay": {"height": (0.5, 1.0), "rate": (1.0, 9.0)}}, start=(1.0, 9.0))
    again = _fit({"Decay": {"height": (0.5, 1.0), "rate": (1.0, 9.0)}}, result.values["Decay"][0])
    assert again.status is caspar.SolveStatus.CONVERGED_GRADIENT or len(again.iterations) <= 2
    assert again.final_cost == result.final_cost


def test_cuda_kernels_of_a_fit() -> None:
    """The CUDA sources of a bounded solve, run on the processor."""
    from tests.harness import find_compiler
    from tests.harness_backend import HarnessBackend

    if find_compiler() is None:
        pytest.skip("needs g++")
    bounds = {"Decay": {"height": (0, 1.5)}}
    result = _fit(bounds, backend=HarnessBackend())
    assert result.final_cost == pytest.approx(_fit(bounds).final_cost, rel=1e-12)
    assert result.values["Decay"][0, 0] == 1.5


@ON_BACKENDS
def test_covariance_holds_what_is_at_a_bound(backend: BackendName) -> None:
    made = caspar.Solver(decayed, backend=backend)
    bounds = {"Decay": {"height": (0, 1.5)}}
    arrays = {"Decay": np.array([[1.0, 1.0]]), "decayed": {"time": TIME, "level": LEVEL}}
    after = {**arrays, **made.solve(arrays, bounds=bounds).values}
    found = made.covariance(after, {"Decay": "all"}, bounds=bounds)
    expected = made.covariance(after, {"Decay": "all"}, fixed={"Decay": {"height": True}})
    np.testing.assert_allclose(found["Decay"], expected["Decay"], rtol=1e-12)
    assert (found["Decay"][0, 0] == 0.0).all()
    loose = made.covariance(after, {"Decay": "all"}, bounds={"Decay": {"height": (0, 1.6)}})
    assert (np.diag(loose["Decay"][0]) > 0.0).all()


class Pair(sf.V2):
    """Two numbers."""


@caspar.factor
def valley(x: Annotated[Pair, caspar.TunableUnique]) -> sf.V2:
    """Rosenbrock's."""
    return sf.V2(10 * (x[1] - x[0] ** 2), 1 - x[0])


@caspar.factor
def bowl(x: Annotated[Pair, caspar.TunableUnique]) -> sf.V3:
    """Beale's."""
    first, second = x[0], x[1]
    residuals = [1.5 - first * (1 - second), 2.25 - first * (1 - second**2)]
    return sf.V3(*residuals, 2.625 - first * (1 - second**3))


@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
@pytest.mark.parametrize("second", [1.0, np.inf])
def test_a_bound_is_reached_in_every_precision(precision: PrecisionName, second: float) -> None:
    """A step stored in float32 lands a rounding of itself short of its bound."""
    made = caspar.Solver(valley, backend="cpu", precision=precision)
    upper = np.array([0.5, second])
    found = made.solve(
        {"Pair": [[-2.0, 1.0]], "valley": {}}, bounds={"Pair": (None, upper)}, verbose=False
    )
    assert found.status.is_success
    assert found.final_cost == pytest.approx(0.125, rel=1e-6)
    assert_array_equal(found.active_bounds["Pair"], [[1, 0]])
    assert found.remaining_decrease < 1e-6


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("short", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 0.0])
def test_a_start_beside_a_corner(short: float, precision: PrecisionName) -> None:
    """Numbers with next to no room must not stop the others: only one of these bounds binds."""
    made = caspar.Solver(bowl, backend="cpu", precision=precision)
    lower, upper = np.array([2.0, -1.0]), np.array([np.inf, 2.0])
    start = [[2.0 + short, 2.0 - short]]
    found = made.solve({"Pair": start, "bowl": {}}, bounds={"Pair": (lower, upper)}, verbose=False)
    wanted = least_squares(
        lambda x: [c - x[0] * (1 - x[1] ** n) for n, c in ((1, 1.5), (2, 2.25), (3, 2.625))],
        [2.5, 0.5],
        bounds=(lower, upper),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    assert found.status.is_success
    assert found.final_cost == pytest.approx(wanted.cost, abs=1e-12)


@dataclasses.dataclass
class Camera:
    """With a lens."""

    pose: sf.Pose3
    focal: sf.Scalar
    first: sf.Scalar
    second: sf.Scalar


class Corner(sf.V3):
    """A point."""


@caspar.factor
def seen(
    camera: Annotated[Camera, caspar.TunableShared],
    corner: Annotated[Corner, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """In thousandths of the focal length."""
    place = camera.pose.inverse() * sf.V3(corner)
    ray = sf.V2(place[0] / place[2], place[1] / place[2])
    square = ray[0] ** 2 + ray[1] ** 2
    scale = camera.focal * (1 + camera.first * square + camera.second * square**2)
    return 1000 * (scale * ray - pixel)


def _bundle(seed: int, num_cameras: int = 6, num_corners: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    corners = random.uniform(-1, 1, (num_corners, 3)) * [2, 2, 1] + [0, 0, 5]
    turns = Rotation.from_rotvec(random.normal(0, 0.1, (num_cameras, 3)))
    places = random.uniform(-1, 1, (num_cameras, 3))
    focal = random.uniform(0.93, 1.07, num_cameras)
    lens = random.uniform(-0.03, 0.03, (num_cameras, 2))
    camera, corner = (grid.ravel() for grid in np.indices((num_cameras, num_corners)))
    local = turns[camera].inv().apply(corners[corner] - places[camera])
    ray = local[:, :2] / local[:, 2:]
    square = (ray**2).sum(axis=1)
    scale = focal[camera] * (1 + lens[camera, 0] * square + lens[camera, 1] * square**2)
    pixel = scale[:, None] * ray + 1e-3 * random.normal(size=ray.shape)
    held, moved = np.zeros((2, 3)), num_cameras - 2
    off = np.vstack([held, random.normal(0, 0.03, (moved, 3))])
    places = places + np.vstack([held, random.normal(0, 0.06, (moved, 3))])
    turned = (turns * Rotation.from_rotvec(off)).as_quat()
    one = np.ones(num_cameras)
    return {
        "Camera": np.column_stack([turned, places, one, 0 * one, 0 * one]),
        "Corner": corners + random.normal(0, 0.09, corners.shape),
        "seen": {"camera": camera, "corner": corner, "pixel": pixel},
    }


@pytest.mark.parametrize("seed", [13, 288, 326, 452])
def test_bundles_in_mixed_precision_end_where_those_in_float64_do(seed: int) -> None:
    arrays, limit = _bundle(seed), (-0.02, 0.02)
    bounds = {"Camera": {"focal": (0.95, 1.05), "first": limit, "second": limit}}
    found, wanted = (
        caspar.Solver(seen, backend="cpu", precision=precision).solve(
            arrays, fixed={"Camera": {"pose": [0, 1]}}, bounds=bounds, verbose=False
        )
        for precision in ("mixed", "float64")
    )
    assert found.status.is_success
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
    assert_array_equal(found.active_bounds["Camera"], wanted.active_bounds["Camera"])
    assert found.remaining_decrease < 1e-6


class Wave(sf.V3):
    """Amplitude, frequency and phase."""


@caspar.factor
def swing(
    wave: Annotated[Wave, caspar.TunableUnique],
    time: Annotated[Rate, caspar.ConstSequential],
    level: Annotated[Level, caspar.ConstSequential],
) -> sf.V1:
    """A sine over time."""
    return sf.V1(wave[0] * sf.sin(wave[1] * time[0] + wave[2]) - level[0])


SWING_TIME = np.linspace(0.2, 4.0, 20)
SWING_LEVEL = 2.0 * np.sin(1.7 * SWING_TIME + 0.4) + 0.05 * np.cos(9.0 * SWING_TIME)
SWINGS = np.array(
    [
        *([5.0, 6.1, 1.2], [6.7, 2.5, 1.1], [4.6, 3.0, 0.2], [6.3, 4.2, 1.1], [5.6, 4.4, 0.2]),
        *([2.7, 2.8, 0.9], [6.8, 6.0, 1.2], [3.6, 3.9, 1.5], [0.1, 5.9, 0.4], [5.7, 4.5, 0.1]),
    ]
)
"""Starts from which a step without more ado ends at an amplitude of zero."""


@pytest.mark.parametrize("precision", ["float64", "mixed", None], ids=["float64", "mixed", "batch"])
def test_first_steps_stay_where_other_unknowns_have_influence(
    precision: PrecisionName | None,
) -> None:
    """At an amplitude of zero, frequency and phase would have none, and the solve would end."""
    lower, upper = np.array([0.0, 0.0, -np.inf]), np.array([np.inf, 10.0, np.inf])
    inputs = {"time": SWING_TIME, "level": SWING_LEVEL}
    flat = 0.5 * (SWING_LEVEL**2).sum()
    if precision is None:
        count = (len(SWINGS), 1)
        found = caspar.BatchSolver(swing, backend="cpu").solve(
            {"Wave": SWINGS, "swing": {name: np.tile(x, count) for name, x in inputs.items()}},
            bounds={"Wave": (np.tile(lower, count), np.tile(upper, count))},
        )
        assert found.is_success.all()
        costs, amplitudes = found.final_cost, found.values["Wave"][:, 0]
    else:
        made = caspar.Solver(swing, backend="cpu", precision=precision)
        results = [
            made.solve(
                {"Wave": start[None], "swing": inputs},
                bounds={"Wave": (lower, upper)},
                verbose=False,
            )
            for start in SWINGS
        ]
        assert all(result.status.is_success for result in results)
        costs = np.array([result.final_cost for result in results])
        amplitudes = np.array([result.values["Wave"][0, 0] for result in results])
    assert (amplitudes > 0.0).all()
    assert (costs < 0.999 * flat).all()


class Height(sf.V1):
    """Of a string at a place."""


@caspar.factor
def bend(
    a: Annotated[Height, caspar.TunableShared],
    b: Annotated[Height, caspar.TunableShared],
    c: Annotated[Height, caspar.TunableShared],
) -> sf.V1:
    return sf.V1(a[0] - 2 * b[0] + c[0])


@caspar.factor
def pull(
    a: Annotated[Height, caspar.TunableShared], to: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    return sf.V1(0.03 * (a[0] - to[0]))


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", ["sparse", "pcg"])
def test_a_string_between_two_walls(linear_solver: LinearSolverName, backend: BackendName) -> None:
    """A quarter of 200 numbers end at a bound: SciPy's active set takes 104 iterations."""
    require_library(linear_solver, backend)
    count = 200
    random, at = np.random.default_rng(0), np.arange(count)
    to = 3.0 * np.sin(np.linspace(0.0, 20.0, count)) + random.normal(0.0, 0.5, count)
    matrix = np.zeros((2 * count - 2, count))
    for place, weight in ((0, 1.0), (1, -2.0), (2, 1.0)):
        matrix[at[:-2], at[:-2] + place] = weight
    matrix[count - 2 :] = 0.03 * np.eye(count)
    wanted = lsq_linear(matrix, np.r_[np.zeros(count - 2), 0.03 * to], (-1, 1), method="bvls")
    solver = caspar.Solver(
        [bend, pull], backend=backend, linear_solver=linear_solver, precision="float64"
    )
    arrays = {
        "Height": np.zeros((count, 1)),
        "bend": {"a": at[:-2], "b": at[1:-1], "c": at[2:]},
        "pull": {"a": at, "to": to[:, None]},
    }
    exact: Any = {"min_linear_tolerance": 1e-6, "max_linear_iterations": 2000}
    result = solver.solve(arrays, bounds={"Height": (-1.0, 1.0)}, **exact)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(wanted.cost, rel=1e-12)
    assert np.count_nonzero(result.active_bounds["Height"]) == 51
    assert len(result.iterations) <= 25


def test_by_graduated_non_convexity() -> None:
    """Options of `solve_gnc` go to each of its solves."""
    level = LEVEL.copy()
    level[::5] += 9.0
    arrays = {"Decay": np.array([[1.0, 1.0]]), "decayed": {"time": TIME, "level": level}}
    made = caspar.Solver(decayed, backend="cpu")
    bounds = {"Decay": {"height": (0, 1.5)}}
    found = caspar.solve_gnc(made, arrays, inlier_threshold=1.0, bounds=bounds)
    assert found.values["Decay"][0, 0] == 1.5
    assert_array_equal(found.inliers["decayed"], level == LEVEL)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0, 1], "bounds: expected a mapping from node types to bounds of their fields, got list"),
        ({"Views": (0, 1)}, "bounds: unknown node type 'Views' .did you mean 'View'"),
        ({"View": {"lense": (0, 1)}}, "node type View: unknown field 'lense' .did you mean 'lens'"),
        ({"View": (0, 1)}, "a View has no bounds; .* name its fields, such as .'pose'"),
        ({"View": {"pose": (0, 1)}}, "field pose: a Pose3 has no bounds; .*'rotation'"),
        ({"View": {"pose": {"rotation": (0, 1)}}}, "field rotation: a Rot3 has no bounds; scalars"),
        (
            {"Mark": {"x": (0, 1)}},
            r"node type Mark: has no fields; expected a pair \(lower, upper\)",
        ),
        ({"Mark": 3.0}, r"expected a pair \(lower, upper\), in which None is open, got float"),
        ({"Mark": (0, 1, 2)}, r"expected a pair \(lower, upper\)"),
        ({"Mark": np.zeros((2, 3))}, r"expected a pair .*got ndarray"),
        (
            {"Mark": (np.zeros(NUM_MARKS), None)},
            r"Mark, lower bound: shape \(40,\); allowed are a number, \(3,\) for its components",
        ),
        ({"Mark": (None, "high")}, "Mark, upper bound: dtype"),
        ({"Mark": ([None, 1, 2], None)}, "Mark, lower bound: dtype object"),
        ({"Mark": (None, [np.nan, 1, 2])}, "Mark, upper bound: NaN at node 0"),
        ({"Mark": (True, None)}, "Mark, lower bound: dtype bool"),
        (
            {"View": {"lens": ([0, 2.0, 0], [9, 1.0, 9])}},
            "field lens: the lower bound 2 is above the upper bound 1 at node 0, component 1",
        ),
        (
            {"View": {"lens": ([0, None, 0], None)}},
            "field lens, lower bound: dtype object",
        ),
        (
            {"View": {"lens": (510.0, None)}},
            "field lens: node 0 starts at 501, component 0, outside its bounds 510 and inf; 5 of 5",
        ),
        ({"Mark": (MARKS + 1e-3 * (np.arange(NUM_MARKS) == 7)[:, None], None)}, "Mark: node 7 st"),
        ({"Mark": (np.ma.masked_array([1.0], mask=[True]), None)}, "Mark, lower bound: got Masked"),
    ],
)
def test_what_does_not_fit(bounds: Any, message: str) -> None:
    made = caspar.Solver(sighting, backend="cpu")
    before = START["View"].copy(), MARKS.copy()
    for call in (made.solve, made.prepare):
        with pytest.raises(InputError, match=message):
            call(START, bounds=bounds)
    assert_array_equal(START["View"], before[0])
    assert_array_equal(MARKS, before[1])
    # nothing is lost: the solver still solves
    assert made.solve(START, fixed=FIXED).status.is_success
