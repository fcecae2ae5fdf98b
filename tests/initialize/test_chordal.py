"""Poses from the measurements of a pose graph alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import InputError
from caspar.initialize import chordal
from caspar.io import PoseGraph, PoseGraphKind, read_g2o
from caspar.io.rotations import compose_se2, compose_se3, invert_se2, invert_se3
from examples import pose_graph, pose_graph_3d

DATA = Path(__file__).parents[2] / "data"
KINDS = list(PoseGraphKind)


def random_poses(rng: np.random.Generator, kind: PoseGraphKind, count: int) -> NDArray[np.float64]:
    if kind is PoseGraphKind.SE2:
        angle = rng.uniform(-np.pi, np.pi, count)
        return np.column_stack([np.cos(angle), np.sin(angle), rng.normal(size=(count, 2))])
    return np.hstack(
        [Rotation.random(count, random_state=rng).as_quat(), rng.normal(size=(count, 3))]
    )


def graph_of(
    kind: PoseGraphKind, poses: NDArray[np.float64], ends: NDArray[np.int64], **changes: Any
) -> PoseGraph:
    """A graph without noise; its own poses are of no use but the first."""
    compose, invert = (
        (compose_se2, invert_se2) if kind is PoseGraphKind.SE2 else (compose_se3, invert_se3)
    )
    start = np.zeros_like(poses)
    start[:, (kind is not PoseGraphKind.SE2 and 3) or 0] = 1.0
    start[0] = poses[0]
    graph = PoseGraph(
        kind=kind,
        ids=np.arange(len(poses)),
        poses=start,
        fixed=np.zeros(len(poses), dtype=bool),
        index_a=ends[:, 0].astype(np.int32),
        index_b=ends[:, 1].astype(np.int32),
        measurement=compose(invert(poses[ends[:, 0]]), poses[ends[:, 1]]),
        sqrt_information=np.tile(np.eye(kind.tangent_dim), (len(ends), 1, 1)),
        poses_from_edges=False,
    )
    return replace(graph, **changes)


def same_poses(found: NDArray[np.float64], wanted: NDArray[np.float64], dim: int) -> None:
    """A quaternion and its negative are one rotation."""
    if dim == 3:
        found = found.copy()
        found[:, :4] *= np.sign((found[:, :4] * wanted[:, :4]).sum(axis=1))[:, None]
    assert_allclose(found, wanted, atol=1e-10)


def ring(count: int) -> NDArray[np.int64]:
    """A chain that closes, with some edges across."""
    chain = [(i, (i + 1) % count) for i in range(count)]
    return np.array(chain + [(i, (i + count // 2) % count) for i in range(0, count, 3)])


@pytest.mark.parametrize("kind", KINDS)
def test_measurements_without_noise_give_the_poses(kind: PoseGraphKind) -> None:
    """However far they turn, and in whatever direction an edge goes."""
    rng = np.random.default_rng(1)
    poses = random_poses(rng, kind, 50)
    ends = ring(50)
    ends[::2] = ends[::2, ::-1]
    found = chordal(graph_of(kind, poses, ends))
    same_poses(found, poses, kind.tangent_dim // 2 + (kind is PoseGraphKind.SE2))


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_of_a_graph_stands_where_its_first_pose_is(kind: PoseGraphKind) -> None:
    rng = np.random.default_rng(2)
    poses = random_poses(rng, kind, 20)
    ends = np.vstack([ring(10), 10 + ring(10)])
    graph = graph_of(kind, poses, ends)
    graph.poses[10] = poses[10]
    same_poses(chordal(graph), poses, kind.tangent_dim // 2 + (kind is PoseGraphKind.SE2))


@pytest.mark.parametrize("kind", KINDS)
def test_held_poses_stay_bit_by_bit(kind: PoseGraphKind) -> None:
    rng = np.random.default_rng(3)
    poses = random_poses(rng, kind, 20)
    fixed = np.arange(20) % 7 == 3
    graph = graph_of(kind, poses, ring(20), fixed=fixed)
    graph.poses[fixed] = poses[fixed]
    found = chordal(graph)
    assert_array_equal(found[fixed], poses[fixed])
    same_poses(found, poses, kind.tangent_dim // 2 + (kind is PoseGraphKind.SE2))


def test_information_weighs() -> None:
    """An edge that is wrong and said to be vague moves nothing."""
    kind = PoseGraphKind.SE3
    rng = np.random.default_rng(4)
    poses = random_poses(rng, kind, 12)
    ends = np.vstack([ring(12), [(0, 5)]])
    graph = graph_of(kind, poses, ends)
    graph.measurement[-1] = random_poses(rng, kind, 1)[0]
    graph.sqrt_information[-1] *= 1e-6
    found = chordal(graph)
    assert_allclose(found[:, 4:], poses[:, 4:], atol=1e-9)
    graph.sqrt_information[-1] = 1.0
    assert np.abs(chordal(graph)[:, 4:] - poses[:, 4:]).max() > 1e-3


def test_an_edge_without_information_still_connects() -> None:
    kind = PoseGraphKind.SE2
    poses = random_poses(np.random.default_rng(5), kind, 3)
    graph = graph_of(kind, poses, np.array([(0, 1), (1, 2)]))
    graph.sqrt_information[1] = 0.0
    same_poses(chordal(graph), poses, 2)
    graph.sqrt_information[:] = 0.0
    same_poses(chordal(graph), poses, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_graphs_without_edges_stay_as_they_are(kind: PoseGraphKind, count: int) -> None:
    poses = random_poses(np.random.default_rng(6), kind, max(count, 1))
    graph = graph_of(kind, poses, np.zeros((0, 2), dtype=np.int64))
    graph = replace(
        graph, ids=np.arange(count), poses=graph.poses[:count], fixed=graph.fixed[:count]
    )
    assert_array_equal(chordal(graph), graph.poses)


@pytest.mark.parametrize("name", ["measurement", "sqrt_information"])
def test_what_is_not_finite_is_refused(name: str) -> None:
    poses = random_poses(np.random.default_rng(7), PoseGraphKind.SE3, 9)
    graph = graph_of(PoseGraphKind.SE3, poses, ring(9))
    getattr(graph, name)[4].flat[0] = np.nan
    with pytest.raises(InputError, match=rf"{name}\[4\] is not finite: 1 of 12 edges"):
        chordal(graph)


@pytest.mark.parametrize(
    ("file", "example", "start", "optimum"),
    [
        ("M3500.g2o.bz2", pose_graph, 88.0, 68.956475),
        ("smallGrid3D.g2o.bz2", pose_graph_3d, 593.0, 231.241265),
    ],
)
def test_public_graphs_start_near_their_minima(
    file: str, example: Any, start: float, optimum: float
) -> None:
    """The files' own poses have costs of 1,283,334 and 58,324."""
    arrays = example.read(DATA / file)
    arrays["Pose2" if "Pose2" in arrays else "Pose"] = chordal(read_g2o(DATA / file))
    # tighter tolerances take more steps near the minimum, which say nothing about the start
    tolerances: dict[str, Any] = {
        "cost_tolerance": 3e-7,
        "gradient_tolerance": 1e-14,
        "step_tolerance": 1e-8,
    }
    result = caspar.Solver(example.FACTORS, backend="cpu").solve(arrays, **tolerances)
    assert result.initial_cost == pytest.approx(start, rel=0.01)
    assert result.final_cost == pytest.approx(optimum, rel=1e-7)
    assert len(result.iterations) <= 8
