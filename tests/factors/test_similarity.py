"""Similarities and projective transformations: groups, factors that take them, and GTSAM's."""

from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import OptionError
from caspar.factors import SL4, Sim3

Rows = Any


def _matrix(row: Rows) -> Rows:
    """(4, 4) of a similarity as it is stored."""
    made = np.eye(4)
    made[:3, :3] = np.exp(row[7]) * Rotation.from_quat(row[:4]).as_matrix()
    made[:3, 3] = row[4:7]
    return made


def _stored(matrix: Rows) -> Rows:
    scale = np.cbrt(np.linalg.det(matrix[:3, :3]))
    rotation = Rotation.from_matrix(matrix[:3, :3] / scale)
    return np.concatenate([rotation.as_quat(), matrix[:3, 3], [np.log(scale)]])


def _random(rng: np.random.Generator) -> Rows:
    rotation = Rotation.from_rotvec(rng.normal(size=3))
    return np.concatenate([rotation.as_quat(), rng.normal(size=3), 0.3 * rng.normal(size=1)])


def _symbolic(row: Rows) -> Sim3:
    return Sim3(sf.Pose3.from_storage(list(row[:7])), sf.V1(row[7]))


def _numbers(made: Sim3) -> Rows:
    return np.array([*made.pose.to_storage(), made.log_scale[0]], float)


def test_the_group() -> None:
    rng = np.random.default_rng(0)
    first, second, point = _random(rng), _random(rng), rng.normal(size=3)
    one, other = _symbolic(first), _symbolic(second)
    assert_allclose(_matrix(_numbers(one * other)), _matrix(first) @ _matrix(second), atol=1e-12)
    assert_allclose(_matrix(_numbers(one.inverse())), np.linalg.inv(_matrix(first)), atol=1e-12)
    image = np.array((one * sf.V3(*point)).to_flat_list(), float)
    assert_allclose(image, (_matrix(first) @ np.append(point, 1.0))[:3], atol=1e-12)


def test_a_loop_spreads_the_drift_of_the_scale() -> None:
    """Each motion loses 2 % of the scale, which the closed loop shows; residuals as by NumPy."""
    rng = np.random.default_rng(1)
    num_frames = 12
    step = np.concatenate([Rotation.from_rotvec([0, 0, 2 * np.pi / 12]).as_quat(), [1, 0, 0, 0]])
    drifting = step + 0.01 * rng.normal(size=(num_frames, 8)) - [0, 0, 0, 0, 0, 0, 0, 0.02]
    drifting[:, :4] /= np.linalg.norm(drifting[:, :4], axis=1, keepdims=True)
    frames = [np.eye(4)]
    for motion in drifting[:-1]:
        frames.append(frames[-1] @ _matrix(motion))
    index = np.arange(num_frames)
    edges = {"a": index, "b": (index + 1) % num_frames, "a_from_b": drifting}
    arrays = {"Sim3": np.stack([_stored(one) for one in frames]), "between": edges}
    solver = caspar.Solver(caspar.factors.between(Sim3, noise="unit"), backend="cpu")
    result = solver.solve(arrays, fixed={"Sim3": [0]})
    assert result.status.is_success
    found = result.values["Sim3"]

    residuals = []
    for a, b, measured in zip(edges["a"], edges["b"], drifting, strict=True):
        relative = np.linalg.inv(_matrix(found[a])) @ _matrix(found[b])
        off = _stored(np.linalg.inv(_matrix(measured)) @ relative)
        residuals.append(np.append(Rotation.from_quat(off[:4]).as_rotvec(), off[4:]))
    assert 0.5 * np.sum(np.square(residuals)) == pytest.approx(result.final_cost, rel=1e-9)
    assert_allclose(result.residuals("between"), residuals, atol=1e-9)
    # the drift is the same everywhere: 12 motions lose what the loop has to find again
    assert np.ptp(np.array(residuals)[:, 6]) < 0.05
    assert np.mean(np.array(residuals)[:, 6]) == pytest.approx(-np.mean(drifting[:, 7]), rel=1e-6)


def test_a_prior_and_a_subclass() -> None:
    from dataclasses import dataclass

    @dataclass
    class Frame(Sim3):
        """A node type of its own."""

    rng = np.random.default_rng(2)
    wanted = _random(rng)
    known = caspar.factors.prior(Frame, noise="unit")
    beside = caspar.factors.between(Frame, noise="unit")
    motion = _random(rng)
    solver = caspar.Solver([known, beside], backend="cpu")
    arrays = {
        "Frame": np.stack([_random(rng), _random(rng)]),
        "prior": {"value": [0], "expected": wanted[None]},
        "between": {"a": [0], "b": [1], "a_from_b": motion[None]},
    }
    result = solver.solve(arrays)
    assert result.final_cost < 1e-20
    first, second = map(_matrix, result.values["Frame"])
    assert_allclose(first, _matrix(wanted), atol=1e-9)
    assert_allclose(second, _matrix(wanted) @ _matrix(motion), atol=1e-9)


def test_charts_of_poses_are_refused() -> None:
    with pytest.raises(OptionError, match="Sim3 has 'product' only"):
        caspar.factors.between(Sim3, chart="logarithm")
    with pytest.raises(OptionError, match="SL4 has 'product' only"):
        caspar.factors.between(SL4, chart="logarithm")


def _projective(rng: np.random.Generator) -> Rows:
    """(4, 4) of determinant 1, away from the identity."""
    made = np.eye(4) + 0.3 * rng.normal(size=(4, 4))
    return made / np.linalg.det(made) ** 0.25


def _of_sl4(matrix: Rows) -> SL4:
    return SL4(sf.M44(matrix.tolist()))


def test_the_projective_group_and_its_steps() -> None:
    rng = np.random.default_rng(4)
    first, second, point = _projective(rng), _projective(rng), rng.normal(size=3)
    one, other = _of_sl4(first), _of_sl4(second)

    def matrix(made: SL4) -> Rows:
        return np.array(made.matrix.to_numpy(), float)

    assert_allclose(matrix(one * other), first @ second, atol=1e-12)
    assert_allclose(matrix(one.inverse()), np.linalg.inv(first), atol=1e-12)
    image = first @ np.append(point, 1.0)
    mine = np.array((one * sf.V3(*point)).to_flat_list(), float)
    assert_allclose(mine, image[:3] / image[3], atol=1e-12)
    step = 0.1 * rng.normal(size=15)
    moved = one.retract(list(step))
    assert np.linalg.det(matrix(moved)) == pytest.approx(1.0, rel=1e-12)
    assert_allclose(np.array(one.local_coordinates(moved), float), step, atol=1e-12)
    size = 1e-6
    ends = [
        np.array(one.retract(list(sign * size * unit)).to_storage(), float)
        for unit in np.eye(15)
        for sign in (1, -1)
    ]
    differences = (np.array(ends[::2]) - np.array(ends[1::2])).T / (2 * size)
    by_step = np.array(one.storage_D_tangent().to_numpy(), float)
    assert_allclose(by_step, differences, atol=1e-8)
    back = np.array(one.tangent_D_storage().to_numpy(), float)
    assert_allclose(back @ by_step, np.eye(15), atol=1e-10)


@pytest.mark.reliability
def test_maps_of_no_calibration_are_joined() -> None:
    """A loop of exact relative transformations is found again.

    Its factor, which compiles for long, is also one of `every_factor`.
    """
    rng = np.random.default_rng(5)
    true = [np.eye(4), *(_projective(rng) for _ in range(5))]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)]
    measured = [np.linalg.inv(true[a]) @ true[b] for a, b in pairs]
    start = [true[0]]
    for one in true[1:]:
        off = one @ (np.eye(4) + 0.05 * rng.normal(size=(4, 4)))
        start.append(off / np.linalg.det(off) ** 0.25)
    first, second = np.array(pairs).T
    edges = {"a": first, "b": second, "a_from_b": np.stack([one.T.ravel() for one in measured])}
    arrays = {"SL4": np.stack([one.T.ravel() for one in start]), "between": edges}
    between = caspar.factors.between(SL4, noise="unit")
    solver = caspar.Solver(between, backend="cpu", precision="float64")
    result = solver.solve(arrays, fixed={"SL4": [0]})
    assert result.final_cost < 1e-20
    found = result.values["SL4"].reshape(-1, 4, 4).transpose(0, 2, 1)
    assert_allclose(found, true, atol=1e-8)
    assert_allclose(np.linalg.det(found), 1.0, rtol=1e-10)


def test_gtsam_agrees() -> None:
    gtsam = pytest.importorskip("gtsam")
    rng = np.random.default_rng(3)
    first, second, point = _random(rng), _random(rng), rng.normal(size=3)

    def of_gtsam(row: Rows) -> Any:
        rotation = gtsam.Rot3(Rotation.from_quat(row[:4]).as_matrix())
        # GTSAM scales the translation, too
        scale = float(np.exp(row[7]))
        return gtsam.Similarity3(rotation, row[4:7] / scale, scale)

    one, other = of_gtsam(first), of_gtsam(second)
    mine = _symbolic(first) * _symbolic(second)
    image = np.array((mine * sf.V3(*point)).to_flat_list(), float)
    assert_allclose(image, (one * other).transformFrom(point), atol=1e-12)
    image = np.array((_symbolic(first).inverse() * sf.V3(*point)).to_flat_list(), float)
    assert_allclose(image, one.inverse().transformFrom(point), atol=1e-12)
    given = _projective(rng), _projective(rng)
    of_gtsam_too, mine_too = [gtsam.SL4(m) for m in given], [*map(_of_sl4, given)]
    product = np.array((mine_too[0] * mine_too[1]).matrix.to_numpy(), float)
    assert_allclose(product, (of_gtsam_too[0] * of_gtsam_too[1]).matrix(), atol=1e-12)
    inverse = np.array(mine_too[0].inverse().matrix.to_numpy(), float)
    assert_allclose(inverse, of_gtsam_too[0].inverse().matrix(), atol=1e-12)
