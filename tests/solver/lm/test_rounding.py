"""Solves that end where only rounding is left are no failures, and say what limits them."""

from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.memory.host_values import write_moved
from caspar.options import BackendName, LinearSolverName
from caspar.solver.limits import Limits
from caspar.solver.linear.explicit.explicit import Method, where_full
from caspar.solver.lm.roundings import DRAWS
from examples import pose_graph
from tests.solver.pose_graphs import DATA
from tests.solver.solving import ON_BACKENDS, Arrays

LIMITS = Limits()


class Robot(sf.V2):
    """A place on a path."""


class Beacon(sf.V2):
    """What its distance is measured to."""


@caspar.factor
def distance(
    robot: Annotated[Robot, caspar.TunableShared],
    beacon: Annotated[Beacon, caspar.TunableShared],
    known: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1((robot - beacon).norm(sf.epsilon()) - known[0])


@caspar.factor
def move(
    robots: Annotated[caspar.Pair[Robot], caspar.TunablePair],
    known: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return 20.0 * (robots[1] - robots[0] - known)


@caspar.factor
def start(
    robot: Annotated[Robot, caspar.TunableShared],
    known: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return 100.0 * (robot - known)


FACTORS = (distance, move, start)


def path(origin: float = 0.0, noise: float = 1.0) -> Arrays:
    """100 places of a robot, of which each sees five beacons."""
    random = np.random.default_rng(0)
    turn = np.linspace(0.0, 4.0 * np.pi, 100)
    robots = origin + np.stack([8.0 * np.cos(turn), 5.0 * np.sin(2.0 * turn)], axis=1)
    beacons = origin + random.uniform(-12.0, 12.0, (5, 2))
    robot, beacon = np.repeat(np.arange(100), 5), np.tile(np.arange(5), 100)
    seen = np.linalg.norm(robots[robot] - beacons[beacon], axis=1)
    moves = np.diff(robots, axis=0)
    return {
        "Robot": robots + noise * random.normal(size=robots.shape),
        "Beacon": beacons + noise * random.normal(size=beacons.shape),
        "distance": {
            "robot": robot,
            "beacon": beacon,
            "known": (seen + 0.1 * noise * random.normal(size=len(seen)))[:, None],
        },
        "move": {"known": moves + 0.05 * noise * random.normal(size=moves.shape)},
        "start": {"robot": [0], "known": robots[:1]},
    }


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", ["auto", "pcg"])
def test_a_start_at_the_optimum(linear_solver: LinearSolverName, backend: BackendName) -> None:
    """Noise-free measurements, and the values that they were made of."""
    solver = caspar.Solver(
        FACTORS, backend=backend, precision="float64", linear_solver=linear_solver
    )
    arrays = path(noise=0.0)
    result = solver.solve(arrays)
    assert result.status.is_success
    assert result.final_cost < 1e-20
    assert result.remarks == ()
    moved = {name: rows + 0.01 for name, rows in arrays.items() if name in ("Robot", "Beacon")}
    first = solver.solve({**arrays, **moved})
    again = solver.solve({**arrays, **first.values})
    assert first.status.is_success
    assert again.status.is_success


@ON_BACKENDS
def test_values_far_from_their_origin(backend: BackendName) -> None:
    """Float32 has 6 cm there: the solve says so. In float64 the optimum is what it is elsewhere."""
    optimum = caspar.Solver(FACTORS, backend=backend, precision="float64").solve(path()).final_cost
    result = caspar.Solver(FACTORS, backend=backend, precision="float32").solve(path(origin=1e6))
    assert result.status.is_success
    assert any("Rounding the values to float32" in remark for remark in result.remarks)
    for precision in ("mixed", "float64"):
        solver = caspar.Solver(FACTORS, backend=backend, precision=precision)
        exact = solver.solve(path(origin=1e6))
        assert exact.remarks == ()
        assert exact.final_cost == pytest.approx(optimum, rel=1e-6)


def test_values_are_rounded_piece_by_piece() -> None:
    """Those of large problems would need much memory at the end of a solve."""
    nodes = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    whole, pieces = np.zeros_like(nodes), np.zeros_like(nodes)
    write_moved(whole, nodes, [1e-3, 0.0], DRAWS[0])
    write_moved(pieces, nodes, [1e-3, 0.0], DRAWS[0], at_once=7)
    assert_array_equal(pieces, whole)
    moved = np.abs(whole - nodes)
    assert np.all(moved[:, 0] > 9e-4)
    assert 0.0 < moved[:, 1].min() <= moved[:, 1].max() < 1e-6


@ON_BACKENDS
def test_jumps_are_still_a_failure(backend: BackendName) -> None:
    """A step promises more than rounding explains: the derivative is of one side alone."""

    @caspar.factor
    def stairs(robot: Annotated[Robot, caspar.TunableShared]) -> sf.V2:
        return robot + sf.V2(20.0 + 30.0 * sf.sign(robot[0]), 0.0)

    solver = caspar.Solver(stairs, backend=backend, precision="float64")
    result = solver.solve({"Robot": [[-1e-300, 0.0]], "stairs": {"robot": [0]}})
    assert result.status is caspar.SolveStatus.DAMPING_LIMIT


def test_pose_graphs_can_be_solved_again() -> None:
    solver = caspar.Solver(pose_graph.FACTORS, backend="cpu")
    arrays = pose_graph.read(DATA / "M3500.g2o.bz2")
    first = solver.solve(arrays)
    assert solver.solve({**arrays, **first.values}).status.is_success


@pytest.mark.parametrize(
    ("size", "share", "method"),
    [
        (LIMITS.min_dense_on_one_core, 1.0, Method.SPARSE),
        (LIMITS.max_dense_on_one_core, 0.9 * LIMITS.full_share, Method.SPARSE),
        (LIMITS.max_dense_on_one_core, 1.1 * LIMITS.full_share, Method.DENSE),
        (LIMITS.max_dense_on_one_core + 1, 1.1 * LIMITS.full_share, Method.GRADIENTS),
    ],
)
def test_full_matrices_are_not_taken_for_sparse_ones(
    size: int, share: float, method: Method
) -> None:
    assert where_full(Method.SPARSE, size, int(share * 0.5 * size**2), LIMITS) is method
