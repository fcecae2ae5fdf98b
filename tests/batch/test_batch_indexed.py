"""`ConstIndexed` arguments of batches: rows of all problems or of each, and which are read."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.batch.generate.shape import Team
from caspar.errors import InputError
from tests.batch.batch_cases import Camera, decay, reprojection, views
from tests.batch.test_batch_solver import FLAT, ragged
from tests.covering import alternating
from tests.harness_backend import HarnessBackend


@caspar.factor
def template(
    camera: Annotated[Camera, caspar.TunableUnique],
    point: Annotated[sf.V3, caspar.ConstIndexed],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A point of a template seen by a camera of 500 pixels."""
    x, y, z = camera * point
    return sf.V2(500 * x / z - pixel[0], 500 * y / z - pixel[1])


def _solved(given: Any, start: Any, backend: Any = "cpu", team: Any = None) -> caspar.BatchResult:
    solver = caspar.BatchSolver(template, backend=backend)
    solver.team = team
    return solver.solve({"Camera": start, "template": given})


def test_rows_of_each_problem_or_of_all() -> None:
    start, points, pixels = views()
    expected = caspar.BatchSolver(reprojection, backend="cpu").solve(
        {"Camera": start, "reprojection": {"point": points, "pixel": pixels}}
    )
    order = np.random.default_rng(0).permutation(points.shape[1])
    shuffled = points[:, np.argsort(order)]
    own = {"point": {"values": shuffled, "index": order[None]}, "pixel": pixels}
    assert_array_equal(_solved(own, start).values["Camera"], expected.values["Camera"])
    all_points = points.reshape(1, -1, 3)
    index = np.arange(points.shape[0] * points.shape[1]).reshape(points.shape[:2])
    same = {"point": {"values": all_points, "index": index}, "pixel": pixels}
    assert_array_equal(_solved(same, start).values["Camera"], expected.values["Camera"])


@pytest.mark.parametrize(("team", "backend"), alternating(Team, ["harness", "cpu"]))
def test_ragged_index_into_a_shared_template(backend: str, team: Team) -> None:
    start, points, pixels = views()
    shared = np.ascontiguousarray(points.reshape(1, -1, 3))
    problem, number = np.nonzero(np.random.default_rng(1).uniform(size=points.shape[:2]) < 0.8)
    order = np.random.default_rng(2).permutation(len(problem))
    problem, number = problem[order], number[order]
    row = problem * points.shape[1] + number
    given = {
        "point": {"values": shared, "index": {"values": row, "problem": problem}},
        "pixel": {"values": pixels[problem, number], "problem": problem},
    }
    expected = caspar.BatchSolver(reprojection, backend="cpu").solve(
        {
            "Camera": start,
            "reprojection": {
                "point": {"values": points[problem, number], "problem": problem},
                "pixel": {"values": pixels[problem, number], "problem": problem},
            },
        }
    )
    found = _solved(given, start, "cpu" if backend == "cpu" else HarnessBackend(), team)
    assert_allclose(found.values["Camera"], expected.values["Camera"], atol=FLAT)
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-11)
    assert_array_equal(found.num_residuals, expected.num_residuals)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": np.full((1, 12), 12)}, r"index 12 is out of range; a problem has 12 such rows"),
        ({"values": {"values": np.zeros((3, 3)), "problem": [0, 0, 1]}}, "Only the index"),
        ({"index": np.zeros((1, 12))}, r"expected integers of shape \(P, m\), the number of a row"),
        ({"row": 1}, "unknown name 'row'"),
    ],
)
def test_what_does_not_fit_is_told(change: dict[str, Any], message: str) -> None:
    start, points, pixels = views()
    point = {"values": points[:1], "index": np.arange(12)[None], **change}
    if isinstance(point["values"], dict):
        point["values"]["problem"] = np.array(point["values"]["problem"])
    with pytest.raises(InputError, match=message):
        _solved({"point": point, "pixel": pixels}, start)


@pytest.mark.parametrize("team", Team)
def test_ragged_losses_weights_and_covariances_as_masked_ones(team: Team) -> None:
    lengths, most = np.array([7, 40, 33, 5, 64]), 64
    arrays, samples, _ = ragged(lengths.tolist())
    rng = np.random.default_rng(6)
    problem = np.repeat(np.arange(5), lengths)
    weight, scale = rng.uniform(0.5, 2.0, len(problem)), rng.uniform(0.01, 0.05, len(problem))
    weight[::9] = 0.0
    time, value = (np.concatenate([one[part] for one in samples]) for part in (0, 1))
    value[::11] += 1.0
    own = {"time": time, "value": value, "weight": weight, "loss_scale": scale}
    solver = caspar.BatchSolver(decay.with_loss(caspar.loss.Huber), backend="cpu")
    solver.team = team
    given = {name: {"values": array, "problem": problem} for name, array in own.items()}
    start = {"Curve": arrays["Curve"]}
    held = {"Curve": np.array([[False] * 3, [False, False, True], *[[False] * 3] * 3])}
    result = solver.solve({**start, "decay": given}, fixed=held)
    is_there = np.arange(most) < lengths[:, None]
    padded = {name: np.ones((5, most)) for name in own}
    padded["weight"][:] = 0.0
    for name, array in own.items():
        padded[name][is_there] = array
    masked = solver.solve({**start, "decay": padded}, fixed=held)
    assert result.is_success.all()
    assert_array_equal(result.num_residuals, masked.num_residuals)
    assert_allclose(result.final_cost, masked.final_cost, rtol=1e-12)
    assert_allclose(result.values["Curve"], masked.values["Curve"], atol=FLAT)
    assert_array_equal(result.values["Curve"][1, 2], arrays["Curve"][1, 2])
    found = solver.covariance({**start, "decay": given, **result.values}, fixed=held)
    wanted = solver.covariance({**start, "decay": padded, **masked.values}, fixed=held)
    assert_allclose(found, wanted, rtol=1e-5, atol=1e-15)
    assert_array_equal(found[1, 2], 0.0)


def test_gradients_by_rows_that_instances_share() -> None:
    start, points, pixels = views()
    rng = np.random.default_rng(0)
    order = rng.permutation(points.shape[1])
    cotangents = {"Camera": rng.normal(size=start.shape)}
    plain = {"Camera": start, "reprojection": {"point": points, "pixel": pixels}}
    solver = caspar.BatchSolver(reprojection, backend="cpu")
    wanted = solver.gradient(solver.solve(plain), cotangents)["reprojection"]
    shuffled = points[:, np.argsort(order)]
    own = {"point": {"values": shuffled, "index": order[None]}, "pixel": pixels}
    solver = caspar.BatchSolver(template, backend="cpu")
    found = solver.gradient(solver.solve({"Camera": start, "template": own}), cotangents)
    assert_allclose(found["template"]["pixel"], wanted["pixel"], rtol=1e-12)
    assert_allclose(found["template"]["point"][:, order], wanted["point"], rtol=1e-12)
    # rows of all problems, by a ragged index
    problem = np.repeat(np.arange(points.shape[0]), points.shape[1])
    row = np.arange(len(problem))
    ragged = {
        "point": {
            "values": points.reshape(1, -1, 3),
            "index": {"values": row[::-1], "problem": problem[::-1]},
        },
        "pixel": {"values": pixels.reshape(-1, 2)[::-1], "problem": problem[::-1]},
    }
    found = solver.gradient(solver.solve({"Camera": start, "template": ragged}), cotangents)
    by_rows = found["template"]["point"].reshape(points.shape)
    assert_allclose(by_rows, wanted["point"], rtol=1e-6, atol=1e-9)


class Many(sf.V9):
    """Unknowns of a problem that is solved by itself."""


@caspar.factor
def near_row(
    many: Annotated[Many, caspar.TunableShared],
    goal: Annotated[sf.V9, caspar.ConstIndexed],
) -> sf.V9:
    """A node is near a row."""
    return many - goal


def test_large_problems_read_the_rows_that_they_name() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1, 30, 9))
    index = rng.integers(0, 30, (2, 20))
    nodes = np.tile(np.arange(20), (2, 1))
    own = {"many": nodes, "goal": {"values": rows, "index": index}}
    solver = caspar.BatchSolver(near_row, backend="cpu")
    result = solver.solve({"Many": np.zeros((2, 20, 9)), "near_row": own})
    assert_allclose(result.values["Many"], rows[0][index], atol=1e-12)
