"""Graduated non-convexity: many outliers, from the usual start."""

from html import escape
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import CasparError
from caspar.options import BackendName, GncLossName
from caspar.solver.gnc import geman_mcclure_weights, truncated_weights
from caspar.solver.result.result import SolveStatus
from tests.solver.losses.loss_cases import line_arrays, point
from tests.solver.solving import ON_BACKENDS

LOSSES = ("truncated", "geman_mcclure")


class Motion(sf.Pose3):
    """Takes one cloud to the other."""


@caspar.factor
def match(
    motion: Annotated[Motion, caspar.TunableUnique],
    here: Annotated[sf.V3, caspar.ConstSequential],
    there: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    return (motion * here - there) / 0.02


class Place(sf.Pose2):
    """A pose in the plane."""


@caspar.factor
def edge(
    a: Annotated[Place, caspar.TunableShared],
    b: Annotated[Place, caspar.TunableShared],
    measured: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    error = measured.inverse() * a.inverse() * b
    return sf.V3(error.t[0] / 0.05, error.t[1] / 0.05, error.R.to_tangent()[0] / 0.02)


@caspar.factor
def first(
    place: Annotated[Place, caspar.TunableShared],
    expected: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    return 1000.0 * sf.V3(*expected.local_coordinates(place))


def clouds(share: float = 0.8, count: int = 300) -> tuple[dict[str, Any], Any, Any]:
    """Arrays of `match`, which matches are wrong, and the motion."""
    random = np.random.default_rng(4)
    turn, shift = Rotation.from_rotvec([0.7, -0.9, 0.5]), np.array([1.0, -2.0, 0.5])
    here = random.uniform(-1.0, 1.0, (count, 3))
    there = turn.apply(here) + shift + random.normal(0.0, 0.02, here.shape)
    is_wrong = np.arange(count) < share * count
    there[is_wrong] = shift + random.uniform(-2.0, 2.0, (np.count_nonzero(is_wrong), 3))
    start = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    return {"Motion": start, "match": {"here": here, "there": there}}, is_wrong, (turn, shift)


@ON_BACKENDS
@pytest.mark.parametrize("loss", LOSSES)
def test_registration_with_four_of_five_matches_wrong(
    loss: GncLossName, backend: BackendName
) -> None:
    arrays, is_wrong, (turn, shift) = clouds()
    solver = caspar.Solver(match, precision="float64", backend=backend)
    found = caspar.solve_gnc(solver, arrays, inlier_probability=0.999, loss=loss)
    motion = found.values["Motion"][0]
    error = (Rotation.from_quat(motion[:4]) * turn.inv()).magnitude()
    assert error < 0.01
    assert_allclose(motion[4:], shift, atol=0.02)
    assert found.has_settled
    assert np.count_nonzero(found.inliers["match"] & is_wrong) <= 2
    assert np.count_nonzero(found.inliers["match"] & ~is_wrong) >= 57
    plain = solver.solve(arrays).values["Motion"][0]
    assert (Rotation.from_quat(plain[:4]) * turn.inv()).magnitude() > 0.1


def graph(share: float = 0.4) -> tuple[dict[str, Any], Any, Any]:
    """A walk with loop closures: arrays, which edges are wrong, true places."""
    random = np.random.default_rng(5)
    count = 120
    angle = np.cumsum(random.choice([0.0, 0.0, np.pi / 2, -np.pi / 2], count))
    step = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    at = np.concatenate([np.zeros((1, 2)), np.cumsum(step[:-1], axis=0)])

    def between(i: Any, j: Any) -> Any:
        back = np.stack([np.cos(angle[i]), -np.sin(angle[i])], axis=1)
        c, s = back[:, 0], back[:, 1]
        d = at[j] - at[i] + 0.0
        t = np.stack([c * d[:, 0] - s * d[:, 1], s * d[:, 0] + c * d[:, 1]], axis=1)
        turn = angle[j] - angle[i] + random.normal(0.0, 0.02, len(i))
        t += random.normal(0.0, 0.05, t.shape)
        return np.column_stack([np.cos(turn), np.sin(turn), t])

    odometry = np.arange(count - 1)
    i, j = random.integers(0, count, (2, 100))
    i, j = i[abs(i - j) > 5], j[abs(i - j) > 5]
    closures = between(i, j)
    is_wrong = np.arange(len(i)) < share * len(i)
    turn = random.uniform(-np.pi, np.pi, np.count_nonzero(is_wrong))
    closures[is_wrong, :2] = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    closures[is_wrong, 2:] = random.uniform(-10.0, 10.0, (len(turn), 2))
    known = between(odometry, odometry + 1)
    places = [np.array([np.cos(angle[0]), np.sin(angle[0]), *at[0]])]
    for c, s, x, y in known:  # along the odometry
        p, q = places[-1][:2]
        a, b = places[-1][2:]
        places.append(
            np.array([p * c - q * s, p * s + q * c, a + p * x - q * y, b + q * x + p * y])
        )
    arrays = {
        "Place": np.array(places),
        "edge": {
            "a": np.concatenate([odometry, i]),
            "b": np.concatenate([odometry + 1, j]),
            "measured": np.concatenate([known, closures]),
        },
        "first": {"place": [0], "expected": places[0][None]},
    }
    return arrays, np.concatenate([np.zeros(count - 1, bool), is_wrong]), at


@pytest.mark.parametrize("loss", LOSSES)
def test_pose_graph_with_wrong_loop_closures(loss: GncLossName) -> None:
    arrays, is_wrong, at = graph()
    solver = caspar.Solver([edge, first], precision="float64", backend="cpu")
    found = caspar.solve_gnc(
        solver,
        arrays,
        inlier_probability={"edge": 0.999},
        known_inliers={"edge": np.arange(119)},
        loss=loss,
    )
    error = np.linalg.norm(found.values["Place"][:, 2:] - at, axis=1)
    assert error.max() < 0.4
    assert_array_equal(found.inliers["edge"] & is_wrong, False)
    assert np.count_nonzero(~found.inliers["edge"] & ~is_wrong) <= 2
    assert found.weights["edge"][:119].min() == 1.0
    plain = solver.solve(arrays).values["Place"][:, 2:]
    assert np.linalg.norm(plain - at, axis=1).max() > 1.0


@pytest.mark.parametrize("loss", LOSSES)
def test_the_graduation_begins_convex_for_the_start_too(loss: GncLossName) -> None:
    """Each solve begins there; what is known to be right does not count."""
    arrays, is_wrong, _ = graph()
    solver = caspar.Solver([edge, first], precision="float64", backend="cpu")
    start = (solver.evaluate(arrays).residuals("edge") ** 2).sum(axis=1)
    plain = solver.solve(arrays).values
    solved = (solver.evaluate({**arrays, **plain}).residuals("edge") ** 2).sum(axis=1)
    odometry = np.arange(119)
    is_known = np.arange(len(is_wrong)) < len(odometry)
    largest = max(start[~is_known].max(), solved[~is_known].max()) / 9.0
    assert solved[~is_known].max() < start[~is_known].max()
    found = caspar.solve_gnc(
        solver,
        arrays,
        inlier_threshold={"edge": 3.0},
        known_inliers={"edge": odometry},
        loss=loss,
        max_steps=2,
    )
    wanted = 1.0 / (2.0 * largest - 1.0) if loss == "truncated" else 2.0 * largest
    assert found.steps[1].control == pytest.approx(wanted, rel=1e-9)


def test_an_absurd_start_does_not_take_all_steps() -> None:
    arrays, is_wrong, _ = clouds()
    arrays["Motion"][0, 4] = 1e12
    solver = caspar.Solver(match, precision="float64", backend="cpu")
    found = caspar.solve_gnc(solver, arrays, inlier_probability=0.999)
    assert found.has_settled
    assert np.count_nonzero(found.inliers["match"] & is_wrong) <= 2
    assert len(found.steps) < 70


def test_without_outliers_one_solve_is_enough() -> None:
    arrays, _, _ = clouds(share=0.0)
    solver = caspar.Solver(match, precision="float64", backend="cpu")
    found = caspar.solve_gnc(solver, arrays, inlier_threshold={"match": np.full(300, 5.0)})
    assert len(found.steps) == 1
    assert found.has_settled
    assert found.inliers["match"].all()
    assert_array_equal(found.weights["match"], 1.0)


class Mean(sf.V1):
    """A number."""


class Sample(sf.V1):
    """A measurement of it."""


@caspar.factor
def apart(
    mean: Annotated[Mean, caspar.TunableUnique], sample: Annotated[Sample, caspar.ConstSequential]
) -> sf.V1:
    return sf.V1(mean[0] - sample[0])


@caspar.factor
def guess(
    mean: Annotated[Mean, caspar.TunableUnique], value: Annotated[Sample, caspar.ConstSequential]
) -> sf.V1:
    return sf.V1(mean[0] - value[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_no_inlier_is_no_success(loss: GncLossName) -> None:
    """Ten numbers that are 1 apart: the mean is 0.5 from the nearest."""
    arrays = {"Mean": [[0.0]], "apart": {"sample": np.arange(10.0)[:, None]}}
    solver = caspar.Solver(apart, backend="cpu")
    found = caspar.solve_gnc(solver, arrays, inlier_threshold=0.05, loss=loss)
    assert not found.inliers["apart"].any()
    assert found.result.status is SolveStatus.NO_RESIDUALS
    assert not found.has_settled
    assert "factor apart: no residual is within" in " ".join(found.result.remarks)


@pytest.mark.parametrize("kept", ["known", "other"])
def test_what_is_left_beside_outliers_may_be_a_success(kept: str) -> None:
    """A known inlier, or a factor without a threshold, holds the number."""
    samples = np.arange(10.0)[:, None] + 1.0
    arrays: dict[str, Any] = {"Mean": [[0.0]], "apart": {"sample": samples}}
    factors, known = [apart], {}
    if kept == "other":
        arrays["guess"] = {"value": [[0.0]]}
        factors = [apart, guess]
    else:
        arrays["apart"]["sample"] = np.concatenate([samples, [[0.0]]])
        known = {"apart": [10]}
    found = caspar.solve_gnc(
        caspar.Solver(factors, backend="cpu"),
        arrays,
        inlier_threshold={"apart": 0.05},
        known_inliers=known,
    )
    assert found.result.status.is_success
    assert found.has_settled
    assert np.ravel(found.values["Mean"]) == pytest.approx([0.0], abs=1e-9)
    remarks = " ".join(found.result.remarks)
    assert ("factor apart: no residual is within" in remarks) == (kept == "other")


def test_users_weights_stay() -> None:
    arrays, is_wrong, (_, shift) = clouds(share=0.5)
    arrays["match"]["weight"] = np.where(is_wrong, 0.0, 3.0)
    solver = caspar.Solver(match, precision="float64", backend="cpu")
    found = caspar.solve_gnc(solver, arrays, inlier_threshold=4.0)
    assert_allclose(found.values["Motion"][0, 4:], shift, atol=0.02)
    assert arrays["match"]["weight"].max() == 3.0


def test_weights_of_the_paper() -> None:
    ratio = np.array([0.0, 0.5, 1.0, 2.0, 1e9])
    assert_array_equal(
        truncated_weights(ratio, 1e9), [1.0, 1.0, truncated_weights(ratio, 1e9)[2], 0, 0]
    )
    assert_allclose(
        truncated_weights(ratio, 1e-3)[:4], [1.0, *(np.sqrt(1e-3 * 1.001 / ratio[1:4]) - 1e-3)]
    )
    assert_allclose(geman_mcclure_weights(ratio, 1.0), (1.0 / (1.0 + ratio)) ** 2)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "give either inlier_threshold or inlier_probability"),
    "both": ({"inlier_threshold": 1.0, "inlier_probability": 0.9}, "give either"),
    "zero": ({"inlier_threshold": 0.0}, "factor point: must be finite and greater than 0"),
    "shape": ({"inlier_threshold": {"point": np.ones(3)}}, "expected a number, or (90,)"),
    "unknown": ({"inlier_threshold": {"pont": 1.0}}, "'pont' is no factor (did you mean 'point'?)"),
    "probability": ({"inlier_probability": 1.5}, "1.5; it is between 0 and 1"),
    "loss": ({"inlier_threshold": 1.0, "loss": "huber"}, "loss='huber'"),
    "growth": ({"inlier_threshold": 1.0, "growth": 1.0}, "growth=1.0"),
    "index": ({"inlier_threshold": 1.0, "known_inliers": {"point": [90]}}, "0 to 89"),
    "kind": ({"inlier_threshold": 1.0, "known_inliers": {"point": [0.5]}}, "expected indices"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    given, message = BAD[case]
    solver = caspar.Solver(point, precision="float64", backend="cpu")
    with pytest.raises(CasparError) as caught:
        caspar.solve_gnc(solver, line_arrays(), **given)
    assert message in str(caught.value)


def test_a_factor_with_a_loss() -> None:
    solver = caspar.Solver(point.with_loss(caspar.loss.Huber), backend="cpu")
    with pytest.raises(CasparError, match="factor point: has the loss Huber"):
        caspar.solve_gnc(solver, line_arrays(), inlier_threshold=1.0)


def test_it_prints_inliers_and_the_report() -> None:
    arrays, wrong, _ = clouds()
    solver = caspar.Solver([match], backend="cpu")
    result = caspar.solve_gnc(solver, arrays, inlier_threshold=5.0)
    inliers = f"inliers       {int((~wrong).sum())} of {len(wrong)} match"
    assert inliers in str(result)
    assert str(result.result) in str(result)
    assert f"{inliers}</pre><div><table>" in result._repr_html_()
    prepared = solver.prepare(arrays)
    covariance = solver.covariance({**arrays, **result.values}, {"Motion": "all"})
    for one in (prepared, covariance):
        assert one._repr_html_() == f"<pre>{escape(str(one))}</pre>"
