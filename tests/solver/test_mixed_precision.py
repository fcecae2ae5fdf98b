"""Mixed precision: values in float64, so that a solve ends where one in float64 ends."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.regression.nist import problems
from caspar import ConstSequential, ConstUnique, TunableShared, TunableUnique
from caspar.bundle_adjustment import snavely
from caspar.options import LinearSolverName, PrecisionName
from caspar.solver.limits import Limits
from tests.covering import alternating
from tests.harness import find_compiler
from tests.solver.bundles import arrays_of, cost_of, part_of, read
from tests.solver.solving import Unhurried

Array = NDArray[np.float64]

WAYS: dict[str, dict[str, Any]] = {
    "stored": {"linear_solver": "schur_pcg"},
    "float16": {"linear_solver": "schur_pcg", "jacobian": "float16"},
    "recompute": {"linear_solver": "schur_pcg", "jacobian": "recompute"},
    "schur_dense": {"linear_solver": "schur_dense"},
    "schur_dense recompute": {"linear_solver": "schur_dense", "jacobian": "recompute"},
}

TIGHT: dict[str, Any] = {
    "cost_tolerance": 1e-15,
    "gradient_tolerance": 1e-28,
    "step_tolerance": 1e-15,
}

UTM = (387_654.0, 5_712_345.0, 120.0)
"""Where a block of pictures is: easting, northing, height; float32 rounds it by up to 0.25 m."""


class Camera(sf.Pose3):
    """A camera's pose in the world."""


class Ground(sf.V3):
    """A point."""


@caspar.factor
def picture(
    camera: Annotated[Camera, TunableShared],
    point: Annotated[Ground, TunableShared],
    focal: Annotated[sf.V1, ConstUnique],
    pixel: Annotated[sf.V2, ConstSequential],
) -> sf.V2:
    p = camera.R.inverse() * (point - camera.t)
    return focal[0] * sf.V2(p[0] / p[2], p[1] / p[2]) - pixel


@caspar.factor
def antenna(
    camera: Annotated[Camera, TunableShared], place: Annotated[sf.V3, ConstSequential]
) -> sf.V3:
    return (camera.t - place) / 0.05


@cache
def block(offset: tuple[float, float, float]) -> dict[str, Any]:
    """Twelve pictures of a field from 40 m above, 8 m apart, whose places are known to 5 cm."""
    random = np.random.default_rng(0)
    x, y = np.meshgrid(8.0 * np.arange(4), 8.0 * np.arange(3))
    centers = np.stack([x.ravel(), y.ravel(), np.full(x.size, 40.0)], axis=1)
    ground = random.uniform((-10, -10, 0), (34, 26, 6), (200, 3))
    down = Rotation.from_euler("x", np.pi)
    turns = down * Rotation.from_rotvec(random.normal(0.0, 0.05, (x.size, 3)))
    cameras, points, pixels = [], [], []
    for number, center in enumerate(centers):
        seen = turns[number].inv().apply(ground - center)
        pixel = 1500.0 * seen[:, :2] / seen[:, 2:]
        inside = np.flatnonzero((np.abs(pixel) < (700, 500)).all(axis=1))
        cameras += [number] * len(inside)
        points += inside.tolist()
        pixels.append(pixel[inside] + random.normal(0.0, 0.5, (len(inside), 2)))
    pixel, owner = np.concatenate(pixels), np.array(points)
    kept = np.bincount(owner, minlength=len(ground))[owner] > 1
    used, owner = np.unique(owner[kept], return_inverse=True)
    start = turns * Rotation.from_rotvec(random.normal(0.0, 0.01, (x.size, 3)))
    shift = np.asarray(offset)
    places = centers + random.normal(0.0, 0.3, centers.shape) + shift
    return {
        "Camera": np.concatenate([start.as_quat(), places], axis=1),
        "Ground": ground[used] + random.normal(0.0, 0.5, (len(used), 3)) + shift,
        "picture": {
            "camera": np.array(cameras)[kept],
            "point": owner,
            "focal": np.array([1500.0]),
            "pixel": pixel[kept],
        },
        "antenna": {
            "camera": np.arange(x.size),
            "place": centers + random.normal(0.0, 0.05, centers.shape) + shift,
        },
    }


@dataclass(frozen=True)
class Case:
    """Factors and arrays."""

    factors: tuple[caspar.Factor, ...]
    arrays: dict[str, Any]

    def solve(self, precision: PrecisionName = "mixed", **choices: Any) -> caspar.SolveResult:
        return caspar.Solver(self.factors, backend="cpu", precision=precision, **choices).solve(
            self.arrays
        )


CASES = {
    "trafalgar": Case((snavely,), arrays_of(part_of(read("problem-21-11315"), 1000))),
    "block": Case((picture, antenna), block((0.0, 0.0, 0.0))),
    "utm": Case((picture, antenna), block(UTM)),
}


@cache
def optimum(name: str) -> float:
    case = CASES[name]
    solver = caspar.Solver(
        case.factors, backend="cpu", precision="float64", linear_solver="schur_dense"
    )
    return solver.solve(case.arrays, max_iterations=300, **TIGHT).final_cost


@cache
def float64_iterations(name: str, linear_solver: str) -> int:
    return len(CASES[name].solve("float64", linear_solver=linear_solver).iterations)


@pytest.mark.parametrize(("way", "name"), alternating(WAYS, ["block", "utm", "trafalgar"]))
def test_it_ends_at_the_optimum_of_float64(name: str, way: str) -> None:
    if (name, way) == ("utm", "recompute"):
        pytest.skip("Jacobians of rounded values: `auto` stores them, see below")
    result = CASES[name].solve(**WAYS[way])
    assert result.status.is_success
    assert result.precision == "mixed"
    assert abs(result.final_cost / optimum(name) - 1.0) < 1e-9
    iterations = float64_iterations(name, WAYS[way]["linear_solver"])
    assert len(result.iterations) <= iterations + 1


def test_jacobians_of_rounded_values_are_slow_but_end_there_too() -> None:
    result = CASES["utm"].solve(**WAYS["recompute"])
    assert result.status.is_success
    assert abs(result.final_cost / optimum("utm") - 1.0) < 1e-8


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_reported_cost_is_that_of_the_values_that_are_returned(dtype: Any) -> None:
    problem = part_of(read("problem-21-11315"), 1000)
    arrays = arrays_of(problem)
    for name in ("Cam", "Point"):
        arrays[name] = arrays[name].astype(dtype)
    result = caspar.Solver([snavely], backend="cpu", precision="mixed").solve(arrays)
    cameras, points = result.values["Cam"], result.values["Point"]
    assert cameras.dtype == points.dtype == dtype
    cost = cost_of(problem, cameras.astype(np.float64), points.astype(np.float64))
    # quaternions that were rounded to float32 are no longer units
    rel = 1e-12 if dtype is np.float64 else 1e-7
    assert result.final_cost == pytest.approx(cost, rel=rel)
    assert result.costs["snavely"] == result.final_cost


def test_held_values_keep_bits_that_float32_has_not() -> None:
    arrays = CASES["utm"].arrays
    solver = caspar.Solver(CASES["utm"].factors, backend="cpu", precision="mixed")
    result = solver.solve(arrays, fixed={"Ground": [0, 3]})
    for number in (0, 3):
        assert result.values["Ground"][number].tolist() == arrays["Ground"][number].tolist()
    moved = result.values["Ground"][5] - arrays["Ground"][5]
    assert 0.0 < np.abs(moved).max() < 3.0


@caspar.factor
def weighed(
    camera: Annotated[Camera, TunableShared],
    point: Annotated[Ground, TunableShared],
    root: Annotated[sf.Matrix22, ConstSequential],
    pixel: Annotated[sf.V2, ConstSequential],
) -> sf.V2:
    p = camera.R.inverse() * (point - camera.t)
    return root * (1500.0 * sf.V2(p[0] / p[2], p[1] / p[2]) - pixel)


def weighed_arrays() -> dict[str, Any]:
    arrays = dict(CASES["block"].arrays)
    given = arrays.pop("picture")
    random = np.random.default_rng(3)
    roots = np.eye(2) + random.normal(0.0, 0.2, (len(given["point"]), 2, 2))
    named = {name: given[name] for name in ("camera", "point", "pixel")}
    return {**arrays, "weighed": {**named, "root": roots}}


class TestConstants:
    def test_what_jacobians_depend_on_is_there_rounded_too(self) -> None:
        """A Jacobian that is derived again has constants in it."""
        arrays, results = weighed_arrays(), []
        for way in ("stored", "recompute"):
            solver = caspar.Solver(
                [weighed, antenna], backend="cpu", precision="mixed", **WAYS[way]
            )
            results.append(solver.solve(arrays))
            table = solver.memory_table()
            assert table is not None
            assert ("weighed.root__rounded" in table) is (way == "recompute")
            # no Jacobian depends on pixels
            assert "weighed.pixel__rounded" not in table
            assert ("Ground.rounded" in table) is (way == "recompute")
        stored, recomputed = results
        assert recomputed.final_cost == pytest.approx(stored.final_cost, rel=1e-10)

    def test_large_ones_are_float32(self) -> None:
        case = CASES["trafalgar"]
        exact = case.solve()
        solver = caspar.Solver(
            [snavely], backend="cpu", precision="mixed", limits=Limits(max_wide_constant_bytes=0)
        )
        narrow = solver.solve(case.arrays)
        arrays = arrays_in(solver)
        assert arrays["snavely.pixel__value"][0] == "float32"
        assert arrays["Cam.nodes"][0] == arrays["Point.nodes"][0] == "float64"
        assert narrow.final_cost != exact.final_cost
        # pixels of up to 500 are rounded by up to 1.5e-5
        assert narrow.final_cost == pytest.approx(exact.final_cost, rel=3e-6)
        # a solver keeps both kinds of kernels apart
        assert solver.solve(case.arrays).final_cost == narrow.final_cost


@pytest.mark.parametrize("name", ["trafalgar", "block"])
def test_memory_of_an_observation(name: str) -> None:
    """A point has 8 bytes more, as candidate too, and 16 of a rounded copy."""
    case = CASES[name]
    solver = caspar.Solver(case.factors, backend="cpu", precision="mixed", **WAYS["recompute"])
    solver.prepare(case.arrays)
    arrays = arrays_in(solver)
    points = "Point" if name == "trafalgar" else "Ground"
    count = len(case.arrays[points])
    for part in ("nodes", "candidate"):
        assert arrays[f"{points}.{part}"] == ("float64", 3 * count)
    assert arrays[f"{points}.rounded"] == ("float32", 4 * count)


def arrays_in(solver: caspar.Solver) -> dict[str, tuple[str, int]]:
    """Type and scalars of the arrays of a solver's memory table."""
    rows = [line.split() for line in str(solver.memory_table()).splitlines()]
    return {row[0]: (row[1], int(row[2].replace(",", ""))) for row in rows if row[1:2] in FLOATS}


FLOATS = (["float32"], ["float64"])


class TestAuto:
    @pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
    @pytest.mark.parametrize("name", ["block", "utm"])
    def test_cuda_stores_jacobians_of_values_far_from_zero(self, name: str) -> None:
        solver = caspar.Solver(CASES[name].factors, backend=Unhurried(), precision="mixed")
        dims = solver.prepare(CASES[name].arrays).jacobian_dims
        assert (dims["picture"] > 0) is (name == "utm")

    @pytest.mark.parametrize("way", ["stored", "recompute"])
    def test_goes_on_in_float64_where_squares_overflow(self, way: str) -> None:
        arrays = near_the_plane(1e-5)
        records: list[int] = []
        solver = caspar.Solver([snavely], backend="cpu", **WAYS[way])
        result = solver.solve(
            arrays, max_iterations=12, on_iteration=lambda record: records.append(record.iteration)
        )
        assert result.precision == "float64"
        assert "went on in float64" in " ".join(result.remarks)
        assert result.final_cost < 1e-3 * result.initial_cost
        numbers = [record.iteration for record in result.iterations]
        assert numbers == records == list(range(1, 13))
        mixed = caspar.Solver([snavely], backend="cpu", precision="mixed", **WAYS[way])
        assert mixed.solve(arrays, max_iterations=12).final_cost == result.final_cost

    def test_derivatives_that_overflow_are_named(self) -> None:
        arrays = near_the_plane(1e-5)
        solver = caspar.Solver([snavely], backend="cpu", precision="mixed", **WAYS["recompute"])
        result = solver.solve(arrays)
        assert "ended it with DERIVATIVES_NOT_FINITE" in " ".join(result.remarks)
        (place,) = np.flatnonzero(arrays["snavely"]["point"] == NEAR)[:1]
        named = f"snavely (1 instance, first {place})"
        assert any(named in remark for remark in result.remarks)


NEAR = 7
"""The point that is moved."""


def near_the_plane(depth: float) -> dict[str, Any]:
    """Trafalgar, in part, with a point that is nearly in the plane of a camera that sees it."""
    problem = part_of(read("problem-21-11315"), 300)
    first = int(np.flatnonzero(problem.point_index == NEAR)[0])
    camera = problem.cameras[problem.camera_index[first]]
    turn = Rotation.from_quat(camera[:4])
    seen = turn.apply(problem.points[NEAR]) + camera[4:7]
    points = problem.points.copy()
    points[NEAR] = turn.inv().apply((*seen[:2], -depth) - camera[4:7])
    return {**arrays_of(problem), "Point": points}


def test_a_huge_first_cost_makes_no_cost_zero() -> None:
    """Where one residual was huge, what is left of it is not what rounding leaves."""
    solver = caspar.Solver([snavely], backend="cpu", precision="float64")
    result = solver.solve(near_the_plane(1e-8), max_iterations=60)
    assert result.initial_cost > 1e50
    assert not (result.status.is_success and result.final_cost > 1e10)


class Shared(sf.V3):
    """Rates."""


class Height(sf.V1):
    """An amplitude of a data set."""


@caspar.factor
def decays(
    height: Annotated[Height, TunableShared],
    rates: Annotated[Shared, TunableUnique],
    time: Annotated[sf.V1, ConstSequential],
    seen: Annotated[sf.V1, ConstSequential],
) -> sf.V1:
    total = sum((sf.exp(-rates[k] * time[0]) for k in range(3)), sf.S.Zero)
    return sf.V1(height[0] * total - seen[0])


def decay_arrays() -> dict[str, Any]:
    time = np.tile(np.linspace(0.0, 1.0, 24), 3)
    owner = np.repeat(np.arange(3), 24)
    rates, heights = np.array([0.5, 3.0, 5.0]), np.array([1.0, 2.0, 0.5])
    seen = heights[owner] * np.exp(-rates[:, None] * time).sum(axis=0)
    return {
        "Height": np.ones((3, 1)),
        "Shared": np.array([[0.3, 2.0, 7.0]]),
        "decays": {"height": owner, "time": time, "seen": seen},
    }


def test_fits_of_single_nodes_are_float64() -> None:
    solver = caspar.Solver([decays], backend="cpu")
    result = solver.solve(decay_arrays())
    assert result.precision == solver.precision.value == "float64"
    rates = np.sort(np.asarray(result.values["Shared"])[0])
    np.testing.assert_allclose(rates, [0.5, 3.0, 5.0], rtol=1e-6)


def test_fits_of_many_nodes_are_mixed() -> None:
    solver = caspar.Solver([decays], backend="cpu", limits=Limits(max_fit_in_float64=2))
    assert solver.solve(decay_arrays(), max_iterations=3).precision == "mixed"


class Line(sf.V2):
    """Height at time 0, and slope."""


@caspar.factor
def height_at(
    line: Annotated[Line, TunableUnique],
    time: Annotated[sf.V1, ConstSequential],
    seen: Annotated[sf.V1, ConstSequential],
) -> sf.V1:
    return sf.V1(line[0] + line[1] * time[0] - seen[0])


@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize("loss", [None, caspar.loss.Huber])
def test_whether_residuals_determine_something_is_judged_in_float64(
    loss: Any, offset: float
) -> None:
    """Late samples of a line: in float32 the slope and the height are one number.

    With an offset of 1e6 that was a success at half a million times this cost.
    """
    time = np.linspace(0.0, 10.0, 101)
    seen = 2.5 * time + 0.01 * np.random.default_rng(0).normal(size=101)
    factor = height_at if loss is None else height_at.with_loss(loss)
    data: dict[str, Any] = {"time": offset + time, "seen": seen}
    if loss is not None:
        data["loss_scale"] = 0.1
    solver = caspar.Solver(factor, backend="cpu", precision="mixed")
    result = solver.solve({"Line": [[0.0, 0.0]], "height_at": data})
    rest = seen - np.polyval(np.polyfit(time, seen, 1), time)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(0.5 * rest @ rest, rel=1e-6)
    assert "went on in float64" in " ".join(result.remarks)
    assert "do not determine" not in " ".join(result.remarks)


class Sum(sf.V5):
    """A constant, two heights, two rates."""


@caspar.factor
def two_decays(
    total: Annotated[Sum, TunableUnique],
    time: Annotated[sf.V1, ConstSequential],
    seen: Annotated[sf.V1, ConstSequential],
) -> sf.V1:
    first, second = (total[at] * sf.exp(-time[0] * total[at + 2]) for at in (1, 2))
    return sf.V1(total[0] + first + second - seen[0])


@pytest.mark.parametrize("linear_solver", ["auto", "sparse"])
def test_two_decays_of_nearly_one_rate(linear_solver: LinearSolverName) -> None:
    """NIST's MGH17 in the units of CUTEst's MGH17S: float32 ends where both rates are one number.

    Steps of usual damping promise less than rounding there, those of less damping do not.
    """
    (problem,) = (one for one in problems() if one.name == "MGH17")
    height, time = problem.kinds[0].data.T
    arrays = {
        "Sum": [[50.0, 150.0, -100.0, 1.0, 2.0]],
        "two_decays": {"time": 0.01 * time, "seen": height},
    }
    solver = caspar.Solver(
        two_decays, backend="cpu", precision="mixed", linear_solver=linear_solver
    )
    result = solver.solve(arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(0.5 * problem.minimum, rel=1e-6)
    assert result.remaining_decrease < 1e-9
