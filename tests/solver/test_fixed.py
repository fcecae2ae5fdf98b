"""What a solve holds keeps its bits, and the rest is solved as if it were written as constants."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.options import BackendName, PrecisionName
from tests.solver.solving import ON_BACKENDS
from tests.support_cudss import require_library


@dataclasses.dataclass
class View:
    """A picture: where it was taken, and through which lens."""

    pose: sf.Pose3
    lens: sf.V3


class Mark(sf.V3):
    """A point in space."""


class Pixel(sf.V2):
    """Where a mark is seen."""


def _seen(pose: sf.Pose3, lens: sf.V3, mark: sf.V3) -> sf.V2:
    place = pose.inverse() * sf.V3(mark)
    ray = sf.V2(place[0], place[1]) / (place[2] + sf.epsilon())
    square = ray.squared_norm()
    return lens[0] * (1 + lens[1] * square + lens[2] * square**2) * ray


@caspar.factor
def sighting(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Everything may move."""
    return _seen(view.pose, view.lens, mark) - pixel


@caspar.factor
def sighting_by_known_lens(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    lens: Annotated[sf.V3, caspar.ConstSequential],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """The lens is a constant."""
    return _seen(pose, lens, mark) - pixel


@caspar.factor
def sighting_of_known_mark(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.ConstSequential],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """The mark is a constant."""
    return _seen(view.pose, view.lens, mark) - pixel


NUM_VIEWS, NUM_MARKS = 5, 40
TIGHT: Mapping[str, Any] = {
    "cost_tolerance": 1e-15,
    "gradient_tolerance": 1e-28,
    "step_tolerance": 1e-14,
    "max_iterations": 200,
    "min_linear_tolerance": 1e-8,
    "max_linear_iterations": 1000,
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "pcg": {"linear_solver": "pcg"},
    "schur_pcg": {"linear_solver": "schur_pcg"},
    "recompute": {"linear_solver": "schur_pcg", "jacobian": "recompute"},
    "schur_dense": {"linear_solver": "schur_dense"},
    "sparse": {"linear_solver": "sparse"},
    "deterministic": {"linear_solver": "schur_pcg", "deterministic": True},
}


def _rotated(quaternion: Any, vector: Any) -> Any:
    turned = 2.0 * np.cross(quaternion[:3], vector)
    return vector + quaternion[3] * turned + np.cross(quaternion[:3], turned)


def _arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    marks = random.normal(size=(NUM_MARKS, 3)) + np.array([0.0, 0.0, 6.0])
    views = np.zeros((NUM_VIEWS, 10))
    views[:, :3], views[:, 3] = 0.05 * random.normal(size=(NUM_VIEWS, 3)), 1.0
    views[:, :4] /= np.linalg.norm(views[:, :4], axis=1, keepdims=True)
    views[:, 4:7] = 0.5 * random.normal(size=(NUM_VIEWS, 3))
    views[:, 7:] = 500.0, -0.1, 0.01
    view, mark = np.nonzero(random.random((NUM_VIEWS, NUM_MARKS)) < 0.8)
    pixels = []
    for v, m in zip(view, mark, strict=True):
        place = _rotated(views[v, :4] * [-1, -1, -1, 1], marks[m] - views[v, 4:7])
        ray = place[:2] / place[2]
        square = ray @ ray
        pixels.append(500.0 * (1 - 0.1 * square + 0.01 * square**2) * ray)
    views[:, 4:7] += 0.01 * random.normal(size=(NUM_VIEWS, 3))
    views[:, 7] += 3.0
    return {
        "View": views,
        "Mark": marks + 0.02 * random.normal(size=marks.shape),
        "sighting": {
            "view": view,
            "mark": mark,
            "pixel": np.array(pixels) + random.normal(size=(len(view), 2)),
        },
    }


ARRAYS = _arrays()
VIEWS, MARKS, SIGHTINGS = ARRAYS["View"], ARRAYS["Mark"], ARRAYS["sighting"]
KNOWN_LENS = {
    "Pose3": VIEWS[:, :7],
    "Mark": MARKS,
    "sighting_by_known_lens": {
        "pose": SIGHTINGS["view"],
        "lens": VIEWS[SIGHTINGS["view"], 7:],
        "mark": SIGHTINGS["mark"],
        "pixel": SIGHTINGS["pixel"],
    },
}
"""The same problem with lenses as constants."""

HELD = {"View": {"lens": True, "pose": [0]}, "Mark": np.isin(np.arange(NUM_MARKS), [3, 5])}


def _solve(
    fixed: Any, backend: BackendName = "cpu", precision: PrecisionName = "float64", **choices: Any
) -> Any:
    made = caspar.Solver(sighting, backend=backend, precision=precision, **choices)
    return made.solve(ARRAYS, fixed=fixed, verbose=False, **TIGHT)


@pytest.fixture(scope="module")
def by_constants() -> float:
    """The cost that the same problem has whose lenses are constants."""
    made = caspar.Solver(
        sighting_by_known_lens, backend="cpu", precision="float64", linear_solver="schur_dense"
    )
    result = made.solve(KNOWN_LENS, fixed={"Pose3": [0], "Mark": [3, 5]}, **TIGHT)
    assert result.status.is_success
    return float(result.final_cost)


@ON_BACKENDS
@pytest.mark.parametrize("method", METHODS)
def test_all_linear_methods(method: str, backend: BackendName, by_constants: float) -> None:
    require_library(method, backend)
    result = _solve(HELD, backend, **METHODS[method])
    views, marks = result.values["View"], result.values["Mark"]
    assert result.status.is_success
    assert result.final_cost == pytest.approx(by_constants, rel=1e-12)
    assert_array_equal(views[:, 7:], VIEWS[:, 7:])
    assert_array_equal(views[0], VIEWS[0])
    assert_array_equal(marks[[3, 5]], MARKS[[3, 5]])
    assert (views[1:, 4:7] != VIEWS[1:, 4:7]).all()
    assert result.problem.held == {"View": 3 * NUM_VIEWS + 6, "Mark": 6}
    assert result.problem.num_unknowns == 9 * NUM_VIEWS + 3 * NUM_MARKS - 27
    assert "held: 21 of View, 6 of Mark" in str(result)


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_single_precision_keeps_the_given_bits(
    precision: PrecisionName, backend: BackendName, by_constants: float
) -> None:
    result = _solve(HELD, backend, precision)
    assert result.final_cost == pytest.approx(by_constants, rel=1e-5)
    assert_array_equal(result.values["View"][:, 7:], VIEWS[:, 7:])
    assert_array_equal(result.values["View"][0], VIEWS[0])


@ON_BACKENDS
def test_components(backend: BackendName) -> None:
    """Rotations, one number of a vector, one coordinate of all marks."""
    fixed = {
        "View": {
            "pose": {"rotation": True},
            "lens": np.tile([True, False, False], (NUM_VIEWS, 1)),
        },
        "Mark": np.tile([False, True, False], (NUM_MARKS, 1)),
    }
    result = _solve(fixed, backend)
    views, marks = result.values["View"], result.values["Mark"]
    assert result.status.is_success
    assert_array_equal(views[:, [0, 1, 2, 3, 7]], VIEWS[:, [0, 1, 2, 3, 7]])
    assert_array_equal(marks[:, 1], MARKS[:, 1])
    assert (views[:, [4, 5, 6, 8, 9]] != VIEWS[:, [4, 5, 6, 8, 9]]).all()
    # from the result nothing that is free moves any further
    again = caspar.Solver(sighting, backend=backend, precision="float64")
    repeated = again.solve({**ARRAYS, **result.values}, fixed=fixed)
    assert repeated.final_cost == pytest.approx(result.final_cost, rel=1e-13)


def test_signed_zeros_stay() -> None:
    marks = MARKS.copy()
    marks[3] = -0.0, 0.25, 5.0
    made = caspar.Solver(sighting, backend="cpu", precision="float64")
    result = made.solve({**ARRAYS, "Mark": marks}, fixed={"Mark": [3]})
    assert_array_equal(np.signbit(result.values["Mark"][3]), [True, False, False])


def test_one_component_moves_alone() -> None:
    """Those beside it keep their bits, the sign of a zero too."""
    marks = MARKS.copy()
    marks[3, 0] = -0.0
    held = np.tile([True, True, False], (NUM_MARKS, 1))
    made = caspar.Solver(sighting, backend="cpu", precision="float64")
    result = made.solve({**ARRAYS, "Mark": marks}, fixed={"View": True, "Mark": held})
    moved = result.values["Mark"]
    assert_array_equal(moved[:, :2], marks[:, :2])
    assert np.signbit(moved[3, 0])
    assert (moved[:, 2] != marks[:, 2]).all()


@ON_BACKENDS
def test_a_type_that_is_wholly_held(backend: BackendName) -> None:
    """Localisation: the marks are constants, nothing is eliminated, and there are no unknowns."""
    result = _solve({"Mark": True}, backend)
    arrays = {
        "View": VIEWS,
        "sighting_of_known_mark": {
            "view": SIGHTINGS["view"],
            "mark": MARKS[SIGHTINGS["mark"]],
            "pixel": SIGHTINGS["pixel"],
        },
    }
    other = caspar.Solver(sighting_of_known_mark, backend=backend, precision="float64")
    expected = other.solve(arrays, **TIGHT)
    assert result.final_cost == pytest.approx(expected.final_cost, rel=1e-12)
    assert result.linear_solver == expected.linear_solver
    assert_array_equal(result.values["Mark"], MARKS)
    assert (result.problem.nodes, result.problem.held) == ({"View": NUM_VIEWS}, {"Mark": 120})
    assert result.problem.num_unknowns == 9 * NUM_VIEWS


@ON_BACKENDS
def test_everything_held(backend: BackendName) -> None:
    result = _solve({"View": True, "Mark": True}, backend)
    assert result.status is caspar.SolveStatus.CONVERGED_GRADIENT
    assert result.final_cost == result.initial_cost
    assert (result.problem.num_unknowns, result.remaining_decrease) == (0, 0.0)


def test_another_mask_makes_nothing_new() -> None:
    made = caspar.Solver(sighting, backend="cpu", precision="float64")
    made.solve(ARRAYS, fixed=HELD)
    with made.system(ARRAYS, fixed=HELD) as first:
        pass
    result = made.solve(ARRAYS, fixed={"View": [2], "Mark": []})
    assert result.compile_time_s == 0.0
    assert_array_equal(result.values["View"][2], VIEWS[2])
    assert (result.values["View"][0] != VIEWS[0]).any()
    with made.system(ARRAYS, fixed={"View": [], "Mark": [1]}) as second:
        assert second is first


def test_nothing_held_is_the_usual_solve() -> None:
    assert _solve(None).final_cost == pytest.approx(_solve({"Mark": []}).final_cost, rel=1e-13)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ([3], "expected a mapping from node types to what is held, got list"),
        ({"Views": True}, "unknown node type 'Views' .did you mean 'View'"),
        ({"View": {"lenses": True}}, "node type View: unknown field 'lenses' .did you mean 'lens'"),
        ({"Mark": {"x": True}}, "node type Mark: has no fields; allowed are"),
        ({"Mark": [NUM_MARKS]}, "node type Mark: index 40 is out of range; there are 40 nodes"),
        ({"Mark": [-1]}, "index -1 is out of range"),
        ({"Mark": np.zeros(3, np.bool_)}, r"booleans of shape \(3,\) for 40 nodes"),
        ({"Mark": np.zeros((NUM_MARKS, 2), np.bool_)}, r"booleans of shape \(40, 2\)"),
        ({"Mark": 1.5}, "node type Mark: got 1.5; allowed are"),
        ({"Mark": "all"}, "node type Mark: got 'all'; allowed are"),
        ({"Mark": np.ones(NUM_MARKS)}, r"float64 of shape \(40,\); allowed are"),
        ({"Mark": [None]}, "object of shape"),
        ({"Mark": np.ma.masked_array([1], mask=[True])}, "a masked array"),
        ({"View": {"pose": {"translation": [9]}}}, "field pose, field translation: index 9 is out"),
        ({"View": {"translation": True}}, "there are pose, lens; write {'pose': {'translation'"),
        ({"View": {"pose": ["translation"]}}, "fields are named by a mapping: {name: True}"),
        ({"View": {"lens": [9]}}, r"index 9 is .*components are held by \(n, \d\) booleans"),
        ({"Mark": 3}, r"got 3; allowed are indices of nodes such as \[0, 7\]"),
    ],
)
def test_what_does_not_fit(fixed: Any, message: str) -> None:
    made = caspar.Solver(sighting, backend="cpu")
    before = VIEWS.copy(), MARKS.copy()
    with pytest.raises(InputError, match=message):
        made.solve(ARRAYS, fixed=fixed)
    with pytest.raises(InputError, match=message):
        made.covariance(ARRAYS, {"Mark": [0]}, fixed=fixed)
    assert_array_equal(VIEWS, before[0])
    assert_array_equal(MARKS, before[1])
    # nothing is lost: the solver still solves
    assert made.solve(ARRAYS, fixed=HELD).status.is_success


@ON_BACKENDS
def test_what_is_held_is_known_exactly(backend: BackendName) -> None:
    """Its covariance is zero, the rest has that of a problem in which it is constant."""
    made = caspar.Solver(sighting, backend=backend)
    lens_held = {"View": {"lens": True, "pose": [0, 1]}}
    found = made.covariance(ARRAYS, {"View": "all", "Mark": [3, 7]}, fixed=lens_held)
    other = caspar.Solver(sighting_by_known_lens, backend=backend)
    expected = other.covariance(
        KNOWN_LENS, {"Pose3": "all", "Mark": [3, 7]}, fixed={"Pose3": [0, 1]}
    )
    np.testing.assert_allclose(found["View"][:, :6, :6], expected["Pose3"], rtol=1e-8, atol=1e-18)
    np.testing.assert_allclose(found["Mark"], expected["Mark"], rtol=1e-8)
    assert (found["View"][:, 6:] == 0.0).all()
    assert (found["View"][:2] == 0.0).all()
    assert found.num_unknowns == expected.num_unknowns == 6 * (NUM_VIEWS - 2) + 3 * NUM_MARKS
    with pytest.raises(caspar.errors.RankDeficiencyError):
        made.covariance(ARRAYS, {"View": "all"})


def test_a_held_map_takes_no_part_in_a_covariance() -> None:
    """The size of the matrices is that of what moves: with 200,000 marks nothing else would fit."""
    count = 200_000
    far = np.tile([0.0, 0.0, 50.0], (count, 1))
    large = {**ARRAYS, "Mark": np.concatenate([MARKS, far])}
    made = caspar.Solver(sighting, backend="cpu")
    found = made.covariance(large, {"View": [2]}, fixed={"Mark": True})
    expected = made.covariance(ARRAYS, {"View": [2]}, fixed={"Mark": True})
    np.testing.assert_allclose(found["View"], expected["View"], rtol=1e-9, atol=1e-20)
    # and it can still be asked for
    known = made.covariance(ARRAYS, {"Mark": [1]}, fixed={"Mark": True})
    assert (known["Mark"] == 0.0).all()


@caspar.factor(loss=caspar.loss.Cauchy)
def robust_sighting(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """With a loss."""
    return _seen(view.pose, view.lens, mark) - pixel


@ON_BACKENDS
@pytest.mark.parametrize("held", [HELD, {"Mark": True}], ids=["some", "all marks"])
def test_with_weights_and_a_loss(held: Any, backend: BackendName) -> None:
    """Instances of weight 0 have no part; the rest is what a solver without them finds."""
    random = np.random.default_rng(1)
    weight = random.uniform(0.5, 2.0, len(SIGHTINGS["view"]))
    weight[[0, 20, 41, 77]] = 0.0
    counted = weight > 0.0
    given = {**SIGHTINGS, "weight": weight, "loss_scale": 2.0}
    fewer = {name: rows[counted] for name, rows in SIGHTINGS.items()}
    fewer |= {"weight": weight[counted], "loss_scale": 2.0}
    made = caspar.Solver(robust_sighting, backend=backend, precision="float64")
    costs = []
    for arrays in (given, fewer):
        problem = {"View": VIEWS, "Mark": MARKS, "robust_sighting": arrays}
        result = made.solve(problem, fixed=held, **TIGHT)
        assert result.status.is_success
        costs.append(result.final_cost)
        names = ["Mark"] if held is HELD else ["View"]
        covariance = made.covariance({**problem, **result.values}, {names[0]: [1]}, fixed=held)
        costs.append(float(np.trace(covariance[names[0]][0])))
    assert costs[0] == pytest.approx(costs[2], rel=1e-12)
    assert costs[1] == pytest.approx(costs[3], rel=1e-6)
