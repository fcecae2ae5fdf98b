"""Stiff problems of batches: weights far apart, large offsets, years; and what is not determined.

Right values come from closed forms, or from variables in which a problem is not stiff. What is
ill-conditioned is solved by a second kernel, which other problems of the batch must not notice.
"""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from benchmarks.regression import stiff
from caspar.batch import options
from caspar.batch.generate.kernel import batch_kernel
from caspar.codegen.targets import TARGETS
from caspar.options import BatchPrecisionName
from caspar.runtime.nvidia.nvrtc import compile_text
from caspar.solver.result.result import SolveStatus
from tests.batch.batch_cases import CASES, Case, Floats, anchor, curves, distance, triangles
from tests.batch.test_batch_teams import ALL, spectra
from tests.covering import alternating, first, usual
from tests.harness_backend import HarnessBackend
from tests.solver.test_stiff import on_circle

BACKENDS = pytest.mark.parametrize("backend", ["cpu", "harness"])
PROCESSOR = pytest.mark.parametrize("backend", first(1, ["cpu", "harness"]))


Given = caspar.ConstSequential


class Line(sf.V2): ...


class Cubic(sf.V4): ...


class Quartic(sf.Matrix):
    SHAPE = (5, 1)


class Place(sf.V4): ...


class Plane(sf.V2): ...


@caspar.factor
def sample(
    line: Annotated[Line, caspar.TunableShared],
    time: Annotated[sf.V1, Given],
    value: Annotated[sf.V1, Given],
) -> sf.V1:
    return sf.V1(*stiff.sample(line, [time[0], value[0]]))


@caspar.factor
def yearly(
    cubic: Annotated[Cubic, caspar.TunableShared],
    year: Annotated[sf.V1, Given],
    value: Annotated[sf.V1, Given],
) -> sf.V1:
    return sf.V1(*stiff.sample(cubic, [year[0], value[0]]))


@caspar.factor
def yearly_quartic(
    quartic: Annotated[Quartic, caspar.TunableShared],
    year: Annotated[sf.V1, Given],
    value: Annotated[sf.V1, Given],
) -> sf.V1:
    return sf.V1(*stiff.sample(quartic, [year[0], value[0]]))


@caspar.factor
def pseudorange(
    place: Annotated[Place, caspar.TunableShared],
    satellite: Annotated[sf.V3, Given],
    measured: Annotated[sf.V1, Given],
) -> sf.V1:
    return sf.V1(*stiff.pseudorange(place, [*satellite, measured[0]]))


@caspar.factor
def on_parabola(
    plane: Annotated[Plane, caspar.TunableShared], weight: Annotated[sf.V1, Given]
) -> sf.V3:
    return sf.V3(*stiff.on_parabola(plane, weight))


def batch_solver(factors: Any, backend: str) -> caspar.BatchSolver:
    """A solver of the processor, or of CUDA C on the processor."""
    chosen: Any = HarnessBackend() if backend == "harness" else backend
    return caspar.BatchSolver(factors, backend=chosen)


def has_decomposed(solver: caspar.BatchSolver) -> bool:
    """Whether a kernel of QR decompositions was needed."""
    structures: Any = [structure for _, structure in solver._kernels._kernels]
    return any(structure[1] is True for structure in structures)


def lines(start_s: float, num_lines: int) -> tuple[dict[str, Any], Floats, Floats]:
    """Samples in ten seconds, and the rates and costs of the lines through them."""
    rng = np.random.default_rng(1)
    times = start_s + np.linspace(0.0, 10.0, 101)
    values = 1.0 + 2.5 * (times - start_s) + rng.normal(0.0, 0.01, (num_lines, 101))
    centred = times - times.mean()
    rates = values @ centred / (centred @ centred)
    left = values - values.mean(axis=1, keepdims=True) - rates[:, None] * centred
    given = {"time": times[None, :, None], "value": values[..., None]}
    return given, rates, 0.5 * (left**2).sum(axis=1)


@pytest.mark.parametrize(("start_s", "backend"), alternating([1e8, 1.7e9], ["cpu", "harness"]))
def test_lines_over_unix_seconds(start_s: float, backend: str) -> None:
    given, rates, costs = lines(start_s, 3)
    solver = batch_solver(sample, backend)
    result = solver.solve({"Line": np.zeros((3, 2)), "sample": given})
    assert result.is_success.all()
    assert (result.iterations <= 20).all()
    # the offset is rounded to 1e-7 at 4e9
    assert_allclose(result.final_cost, costs, rtol=1e-5)
    assert_allclose(result.values["Line"][:, 1], rates, rtol=1e-6)
    assert has_decomposed(solver)


@pytest.mark.parametrize("loss", [caspar.loss.Huber, caspar.loss.Cauchy])
def test_outliers_pull_without_damping(loss: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows of C vanish with the damping, their pull does not."""
    given, _, _ = lines(0.0, 2)
    given["value"][:, ::10] += 1.0
    arrays = {"Line": np.zeros((2, 2)), "sample": {**given, "loss_scale": 0.05}}
    wanted = caspar.BatchSolver(sample.with_loss(loss), backend="cpu").solve(arrays)
    monkeypatch.setattr(options, "LEAST_KEPT_PIVOT", 2.0)
    solver = caspar.BatchSolver(sample.with_loss(loss), backend="cpu")
    arrays["Line"] = wanted.values["Line"] + [0.01, 0.001]
    result = solver.solve(arrays, min_damping=0.0, initial_damping=1e-30)
    assert result.is_success.all()
    assert has_decomposed(solver)
    assert_allclose(result.final_cost, wanted.final_cost, rtol=1e-9)


@pytest.mark.parametrize(("degree", "factor"), [(3, yearly), (4, yearly_quartic)])
def test_polynomials_over_years(degree: int, factor: Any) -> None:
    years = np.linspace(1990.0, 2020.0, 61)
    scaled = (years - 2005.0) / 15.0
    values = 3.0 + 2.0 * scaled - 1.5 * scaled**2 + 0.7 * scaled**3
    values = values + np.random.default_rng(0).normal(0.0, 0.05, (2, 61))
    left = [row - np.polyval(np.polyfit(scaled, row, degree), scaled) for row in values]
    node = {3: "Cubic", 4: "Quartic"}[degree]
    samples = {"year": years[None, :, None], "value": values[..., None]}
    result = caspar.BatchSolver(factor, backend="cpu").solve(
        {node: np.zeros((2, degree + 1)), factor.name: samples}
    )
    assert result.is_success.all()
    assert (result.iterations <= 20).all()
    assert_allclose(result.final_cost, 0.5 * np.square(left).sum(axis=1), rtol=1e-6)


@PROCESSOR
def test_circles_from_far_away(backend: str) -> None:
    angles = np.random.default_rng(3).uniform(0.0, 2.0 * np.pi, 12)
    points = np.stack([3.0 + 2.0 * np.cos(angles), -1.0 + 2.0 * np.sin(angles)], axis=1)
    points += np.random.default_rng(4).normal(0.0, 0.01, points.shape)
    # x^2 + y^2 = 2 a x + 2 b y + c is linear
    matrix, squares = np.column_stack([2.0 * points, np.ones(12)]), (points**2).sum(axis=1)
    left = squares - matrix @ np.linalg.lstsq(matrix, squares)[0]
    start = np.array([[0.0, 0.0, radius] for radius in (1e5, 1e6)])
    result = batch_solver(on_circle, backend).solve(
        {"Circle": start, "on_circle": {"point": points[None]}}
    )
    assert result.is_success.all()
    assert (result.iterations <= 30).all()
    assert_allclose(result.final_cost, 0.5 * float(left @ left), rtol=1e-7)


@pytest.mark.parametrize("bias", [0.0, 3e5, 3e10])
def test_a_common_offset_is_explained_at_once(bias: float) -> None:
    satellites, ranges, places = [], [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(7, 3))
        directions[:, 2] = np.abs(directions[:, 2]) + 0.3
        satellites.append(2.66e7 * directions / np.linalg.norm(directions, axis=1, keepdims=True))
        places.append(np.array([0.0, 0.0, 6.371e6]) + rng.normal(0.0, 1e4, 3))
        ranges.append(np.linalg.norm(satellites[-1] - places[-1], axis=1) + bias)
    result = caspar.BatchSolver(pseudorange, backend="cpu").solve(
        {
            "Place": np.zeros((20, 4)),
            "pseudorange": {
                "satellite": np.array(satellites),
                "measured": np.array(ranges)[..., None],
            },
        }
    )
    assert result.is_success.all(), result.counts
    # what rounding leaves of the bias
    assert_allclose(result.values["Place"][:, :3], places, atol=1e-13 * max(bias, 1e9))


@BACKENDS
def test_equations_as_heavy_residuals(backend: str) -> None:
    nearest = stiff.heavy_equation(1e6)[1]
    weights = 10.0 ** np.arange(6, 13)
    count = len(weights)
    result = batch_solver(on_parabola, backend).solve(
        {
            "Plane": np.tile([5.0, -3.0], (count, 1)),
            "on_parabola": {"weight": weights[:, None, None]},
        }
    )
    assert result.is_success.all()
    assert (result.iterations <= 20).all()
    assert_allclose(result.values["Plane"], np.tile(nearest, (count, 1)), rtol=1e-7)


def bounded_and_weighted() -> tuple[Case, dict[str, Any]]:
    """Curves whose offsets are to stay above 0, samples of any weight."""
    case = curves(num_problems=6)
    weight = np.random.default_rng(0).uniform(0.0, 2.0, (6, 15))
    samples = {**case.arrays["decay"], "weight": weight}
    bounds = {"Curve": (np.tile([0.0, 0.0, 0.1], (6, 1)), None)}
    start = np.tile([2.0, 1.0, 0.5], (6, 1))
    return replace(case, arrays={**case.arrays, "decay": samples, "Curve": start}), bounds


@pytest.mark.parametrize(
    ("name", "backend"),
    usual(
        [("paths", "harness"), ("spectra", "cpu"), ("bounded", "cpu")],
        [*ALL, "bounded"],
        ["harness", "cpu"],
    ),
)
def test_decompositions_find_what_normal_equations_find(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All problems, as if each were ill-conditioned."""
    case, bounds = bounded_and_weighted() if name == "bounded" else (ALL[name](), None)
    wanted = caspar.BatchSolver(case.factors, backend="cpu").solve(
        case.arrays, fixed=case.fixed, bounds=bounds
    )
    monkeypatch.setattr(options, "LEAST_KEPT_PIVOT", 2.0)
    solver = batch_solver(case.factors, backend)
    found = solver.solve(case.arrays, fixed=case.fixed, bounds=bounds)
    assert has_decomposed(solver)
    assert found.is_success.all()
    assert wanted.is_success.all()
    assert_allclose(found.initial_cost, wanted.initial_cost, rtol=1e-13)
    assert_allclose(found.final_cost, wanted.final_cost, rtol=1e-10)
    assert np.abs(found.iterations - wanted.iterations).max() <= 3


def test_others_do_not_notice() -> None:
    """Tame problems have the bits that they have without stiff ones, and those theirs."""
    tame, _, _ = lines(0.0, 4)
    late, _, _ = lines(1.7e9, 3)
    times = np.concatenate([np.tile(one["time"], (n, 1, 1)) for one, n in ((tame, 4), (late, 3))])
    values = np.concatenate([tame["value"], late["value"]])
    solver = caspar.BatchSolver(sample, backend="cpu")
    order = np.array([0, 4, 1, 5, 2, 3, 6])

    def solve(rows: Any) -> caspar.BatchResult:
        given = {"time": times[rows], "value": values[rows]}
        return solver.solve({"Line": np.zeros((len(rows), 2)), "sample": given})

    whole = solve(order)
    for rows in (np.arange(4), np.arange(4, 7)):
        part = solve(rows)
        place = np.flatnonzero(np.isin(order, rows))
        assert_array_equal(whole.values["Line"][place], part.values["Line"])
        assert_array_equal(whole.status_codes[place], part.status_codes)
        assert_array_equal(whole.iterations[place], part.iterations)


@PROCESSOR
def test_what_is_free_is_left_to_damping(backend: str) -> None:
    """Without anchors triangles may move and turn: there is no step without damping."""
    case = triangles(num_problems=4)
    arrays = {name: array for name, array in case.arrays.items() if name != anchor.name}
    result = batch_solver([distance], backend).solve(arrays)
    assert result.is_success.all()
    single = caspar.Solver([distance], backend="cpu", precision="float64")
    for number in range(4):
        own = {key: value for key, value in case.single(number).items() if key in arrays}
        found = single.solve(own)
        assert_allclose(result.final_cost[number], found.final_cost, rtol=1e-9, atol=1e-20)
    # steps do not move the triangle along what is free
    moved = np.asarray(result.values["Place"]) - arrays["Place"]
    assert np.abs(moved).max() < 3.0


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_what_no_residual_pulls_is_no_success(precision: BatchPrecisionName) -> None:
    """Beyond its scale Tukey's loss weighs nothing; Cauchy's still does."""
    given, _, _ = lines(0.0, 2)
    start = np.array([[1.0, 2.5], [1e6, 0.0]])
    for loss, far in ((caspar.loss.Tukey, SolveStatus.NO_RESIDUALS), (caspar.loss.Cauchy, None)):
        arrays = {"Line": start, "sample": {**given, "loss_scale": 0.5}}
        solver = caspar.BatchSolver(sample.with_loss(loss), backend="cpu", precision=precision)
        result = solver.solve(arrays)
        assert result.is_success[0]
        if far is None:
            assert result.status[1] is not SolveStatus.NO_RESIDUALS
            assert result.iterations[1] > 0
            continue
        assert result.status[1] is far
        assert not result.is_success[1]
        assert result.iterations[1] == 0
        assert_array_equal(result.values["Line"][1], start[1])
        assert result.final_cost[1] == result.initial_cost[1] > 0.0


@BACKENDS
def test_covariances_of_stiff_problems(backend: str) -> None:
    """A tame problem, one over Unix seconds, one that a single sample does not determine, one held.

    The variance of a rate is one over the sum of squares of centred times.
    """
    times = np.linspace(0.0, 10.0, 11) + np.array([0.0, 1.7e9, 0.0, 1.7e9])[:, None]
    times[2] = 3.0
    given = {"time": times[..., None], "value": np.ones((4, 11, 1))}
    held = np.zeros((4, 2), dtype=bool)
    held[3, 1] = True
    arrays = {"Line": np.zeros((4, 2)), "sample": given}
    solver = batch_solver(sample, backend)
    found = solver.covariance(arrays, fixed={"Line": held})
    assert_allclose(found[:2, 1, 1], 1.0 / 110.0, rtol=1e-5)
    offsets = 1.0 / 11.0 + times[:2].mean(axis=1) ** 2 / 110.0
    assert_allclose(found[:2, 0, 0], offsets, rtol=1e-5)
    assert np.isnan(found[2]).all()
    assert_allclose(found[3], [[1.0 / 11.0, 0.0], [0.0, 0.0]], rtol=1e-13)
    assert_allclose(solver.covariance(arrays)[:2], found[:2], rtol=1e-5)


def ring(num_places: int) -> Case:
    """A ring of places held together by distances, weakly anchored."""
    case = triangles(num_problems=1)
    first = np.arange(num_places)
    index = {"first": first[None], "second": np.roll(first, 1)[None]}
    measured = np.ones((1, num_places))
    place = first[None]
    arrays = {
        "Place": np.zeros((1, num_places, 2)),
        "distance": {**index, "measured": measured},
        "anchor": {"place": place, "at": np.zeros((1, num_places, 2))},
    }
    return replace(case, arrays=arrays)


@pytest.mark.parametrize(
    ("name", "arch"),
    usual([("ring", "sm_90"), ("paths", "sm_75")], ["ring", *CASES, "spectra"], ["sm_90", "sm_75"]),
)
def test_kernels_compile(name: str, arch: str) -> None:
    """That of 48 unknowns is the largest on a GPU."""
    case = ring(24) if name == "ring" else spectra() if name == "spectra" else CASES[name]()
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    shape = solver.inspect(case.arrays, fixed=case.fixed, target="cuda").shape
    assert name != "ring" or shape.num_unknowns == options.MAX_UNKNOWNS["cuda"]
    compiled = compile_text(batch_kernel(shape.orthogonal, TARGETS["cuda"]).text, arch)
    (resources,) = compiled.resources.values()
    assert compiled.warnings == ()
    assert resources.shared_bytes <= 48 * 1024
    assert resources.spill_store_bytes <= 256
