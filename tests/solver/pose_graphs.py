"""Pose graphs solved without caspar, in float64 and with exact steps: an independent optimum.

The residuals are those of the examples, or g2o's own (`RotationError`); they and their Jacobians
are written out by hand for all edges at once, and every damped step is solved by SciPy's SuperLU.
The first pose is held, which leaves the optimum as it is and makes the normal equations positive
definite.

    python -m tests.solver.pose_graphs FILE...
"""

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu

from caspar.io import PoseGraph, PoseGraphKind, read_g2o

Array = NDArray[np.float64]

DATA = Path(__file__).parents[2] / "data"


class RotationError(Enum):
    """What stands for the rotation in the residual of an edge in space; small ones are alike."""

    ROTATION_VECTOR = "half of the rotation vector, as in examples/pose_graph_3d.py"
    QUATERNION = "the vector part of the quaternion, as in g2o"


@dataclass(frozen=True)
class KnownOptimum:
    """Costs that this module prints for a g2o file.

    Levenberg-Marquardt from the poses of the file, until no step lowers the cost by more than
    1e-14 of it.

    Attributes:
        initial_cost: At the poses of the file.
        cost: At the optimum.
    """

    initial_cost: float
    cost: float


_VECTOR, _QUATERNION = RotationError.ROTATION_VECTOR, RotationError.QUATERNION

KNOWN_OPTIMA = {
    ("smallGrid3D", _VECTOR): KnownOptimum(58_323.802_289_36, 231.241_265_109_7),
    ("smallGrid3D", _QUATERNION): KnownOptimum(57_978.998_974_75, 229.076_892_149_3),
    ("M3500", _VECTOR): KnownOptimum(1_283_333.829_603, 68.956_475_468_02),
    ("sphere2500", _VECTOR): KnownOptimum(1_273_982.705_494, 363.619_425_883_9),
    ("sphere2500", _QUATERNION): KnownOptimum(1_273_905.449_522, 363.574_833_624_0),
    ("parking-garage", _VECTOR): KnownOptimum(8_360.009_183_890, 0.619_345_298_916_6),
    ("parking-garage", _QUATERNION): KnownOptimum(8_360.009_085_259, 0.619_345_289_877_0),
}
"""By file and residual. chi2 is twice the cost: g2o's own residual ends at 458.154, 137.913,
727.150 and 1.238_69. In the plane both residuals are one."""


@dataclass(frozen=True)
class Optimum:
    """What was found.

    Attributes:
        initial_cost: 1/2 * the sum of squared whitened residuals at the start.
        cost: The same at the end.
        poses: (num_poses, storage_dim), as in `PoseGraph`.
        gradient_norm: Largest component of the gradient at the end.
        iterations: Steps that were tried.
    """

    initial_cost: float
    cost: float
    poses: Array
    gradient_norm: float
    iterations: int


@dataclass(frozen=True)
class _Linearization:
    """Whitened residuals (n, d) and Jacobians (n, d, d) by the steps of both ends."""

    residual: Array
    jacobian_a: Array
    jacobian_b: Array


def residuals(
    graph: PoseGraph, poses: Array, error: RotationError = RotationError.ROTATION_VECTOR
) -> Array:
    """Whitened residuals of all edges, (num_edges, tangent_dim)."""
    return _linearize_any(graph, poses, error).residual


def minimize(
    graph: PoseGraph,
    error: RotationError = RotationError.ROTATION_VECTOR,
    max_iterations: int = 300,
) -> Optimum:
    """Levenberg-Marquardt with exact steps from the poses of the graph."""
    poses, damping = graph.poses.copy(), 1e-6
    linear = _linearize_any(graph, poses, error)
    cost = initial_cost = _cost(linear)
    iterations = 0
    while True:
        hessian, gradient = _normal_equations(graph, linear)
        decrease = 0.0
        while iterations < max_iterations:
            iterations += 1
            damped = hessian + damping * sparse.diags(hessian.diagonal(), format="csc")
            step = -_factorize(damped).solve(gradient)
            candidate = retract(graph.kind, poses, np.concatenate([np.zeros(_dim(graph)), step]))
            candidate_linear = _linearize_any(graph, candidate, error)
            decrease = cost - _cost(candidate_linear)
            if decrease > 0.0 or np.abs(step).max() < 1e-13:
                break
            damping *= 4.0
        if decrease > 0.0:
            poses, linear, cost = candidate, candidate_linear, cost - decrease
            damping = max(damping / 10.0, 1e-15)
        if decrease <= 1e-14 * cost or iterations == max_iterations:
            gradient_norm = float(np.abs(_normal_equations(graph, linear)[1]).max())
            return Optimum(initial_cost, cost, poses, gradient_norm, iterations)


def normal_matrix(graph: PoseGraph, poses: Array) -> sparse.csc_matrix:
    """J^T J of all poses but the first, in blocks of tangent_dim: ((n - 1) d, (n - 1) d)."""
    linear = _linearize_any(graph, poses, RotationError.ROTATION_VECTOR)
    return _normal_equations(graph, linear)[0]


def _dim(graph: PoseGraph) -> int:
    return graph.kind.tangent_dim


def _cost(linear: _Linearization) -> float:
    return 0.5 * float(np.sum(linear.residual**2))


def _factorize(matrix: sparse.csc_matrix) -> sparse.linalg.SuperLU:
    options = {"SymmetricMode": True}
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def _normal_equations(graph: PoseGraph, linear: _Linearization) -> tuple[sparse.csc_matrix, Array]:
    num_edges, dim = linear.residual.shape
    rows = np.arange(num_edges * dim).reshape(num_edges, dim, 1)
    entries, all_rows, all_columns = [], [], []
    for index, jacobian in (
        (graph.index_a, linear.jacobian_a),
        (graph.index_b, linear.jacobian_b),
    ):
        columns = dim * index.astype(np.int64)[:, None, None] + np.arange(dim)
        entries.append(jacobian.reshape(-1))
        all_rows.append(np.broadcast_to(rows, jacobian.shape).reshape(-1))
        all_columns.append(np.broadcast_to(columns, jacobian.shape).reshape(-1))
    places = (np.concatenate(all_rows), np.concatenate(all_columns))
    shape = (num_edges * dim, graph.num_poses * dim)
    jacobian = sparse.csc_matrix((np.concatenate(entries), places), shape=shape)[:, dim:]
    return sparse.csc_matrix(jacobian.T @ jacobian), jacobian.T @ linear.residual.reshape(-1)


def tangent_jacobians(
    graph: PoseGraph, poses: Array, error: RotationError = RotationError.ROTATION_VECTOR
) -> tuple[Array, Array]:
    """Jacobians of the whitened residuals by the steps of both ends, (num_edges, d, d) each."""
    linear = _linearize_any(graph, poses, error)
    return linear.jacobian_a, linear.jacobian_b


def _linearize_any(graph: PoseGraph, poses: Array, error: RotationError) -> _Linearization:
    if graph.kind is PoseGraphKind.SE2:
        raw = _linearize_se2(graph, poses)
    else:
        raw = _linearize_se3(graph, poses, error)
    whiten = graph.sqrt_information
    return _Linearization(
        residual=np.einsum("nij,nj->ni", whiten, raw.residual),
        jacobian_a=whiten @ raw.jacobian_a,
        jacobian_b=whiten @ raw.jacobian_b,
    )


def retract(kind: PoseGraphKind, poses: Array, step: Array) -> Array:
    """Move positions in the world's frame, turn orientations in the body's."""
    if kind is PoseGraphKind.SE2:
        steps = step.reshape(-1, 3)
        angle = np.arctan2(poses[:, 1], poses[:, 0]) + steps[:, 2]
        return np.column_stack([np.cos(angle), np.sin(angle), poses[:, 2:] + steps[:, :2]])
    steps = step.reshape(-1, 6)
    turned = _product(poses[:, :4], _quaternion(steps[:, 3:]))
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    return np.column_stack([turned, poses[:, 4:] + steps[:, :3]])


# -- the plane: poses cos sin x y, residual [translation, angle], steps [translation, angle] -------


def _linearize_se2(graph: PoseGraph, poses: Array) -> _Linearization:
    start, end, measured = poses[graph.index_a], poses[graph.index_b], graph.measurement
    from_world, from_start = _rotation_se2(start, -1), _rotation_se2(measured, -1)
    distance = end[:, 2:] - start[:, 2:]
    between = np.einsum("nij,nj->ni", from_world, distance)
    translation = np.einsum("nij,nj->ni", from_start, between - measured[:, 2:])
    angle = _angle(end) - _angle(start) - _angle(measured)
    angle = np.arctan2(np.sin(angle), np.cos(angle))
    by_start = np.zeros((len(start), 3, 3))
    by_end = np.zeros((len(start), 3, 3))
    by_end[:, :2, :2] = from_start @ from_world
    by_end[:, 2, 2] = 1.0
    by_start[:, :2, :2] = -by_end[:, :2, :2]
    turned = np.column_stack([between[:, 1], -between[:, 0]])
    by_start[:, :2, 2] = np.einsum("nij,nj->ni", from_start, turned)
    by_start[:, 2, 2] = -1.0
    return _Linearization(np.column_stack([translation, angle]), by_start, by_end)


def _angle(pose: Array) -> Array:
    return np.asarray(np.arctan2(pose[:, 1], pose[:, 0]))


def _rotation_se2(pose: Array, sign: int) -> Array:
    cos, sin = pose[:, 0], sign * pose[:, 1]
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], axis=1)


# -- space: poses qx qy qz qw x y z, residual [translation, rotation], --------------------------
# -- steps [translation, rotation vector] --------------------------------------------------------


def _linearize_se3(graph: PoseGraph, poses: Array, error: RotationError) -> _Linearization:
    start, end, measured = poses[graph.index_a], poses[graph.index_b], graph.measurement
    from_world = _matrix(start[:, :4]).transpose(0, 2, 1)
    from_start = _matrix(measured[:, :4]).transpose(0, 2, 1)
    between = np.einsum("nij,nj->ni", from_world, end[:, 4:] - start[:, 4:])
    translation = np.einsum("nij,nj->ni", from_start, between - measured[:, 4:])
    rotation = _product(_conjugate(measured[:, :4]), _product(_conjugate(start[:, :4]), end[:, :4]))
    rotation *= np.where(rotation[:, 3:] < 0.0, -1.0, 1.0)
    if error is RotationError.QUATERNION:
        turn, by_turn = _quaternion_error(rotation)
    else:
        turn, by_turn = _half_rotation_vector(rotation)
    by_start = np.zeros((len(start), 6, 6))
    by_end = np.zeros((len(start), 6, 6))
    by_end[:, :3, :3] = from_start @ from_world
    by_end[:, 3:, 3:] = by_turn
    by_start[:, :3, :3] = -by_end[:, :3, :3]
    by_start[:, :3, 3:] = from_start @ _cross(between)
    # a turn of the start is one of the end the other way round, seen from there
    by_start[:, 3:, 3:] = -by_turn @ _matrix(rotation).transpose(0, 2, 1) @ from_start
    return _Linearization(np.column_stack([translation, turn]), by_start, by_end)


def _quaternion_error(rotation: Array) -> tuple[Array, Array]:
    """Vector part of a quaternion, and its derivative by a turn on its right."""
    vector = rotation[:, :3]
    return vector, 0.5 * (rotation[:, 3, None, None] * np.eye(3) + _cross(vector))


def _half_rotation_vector(rotation: Array) -> tuple[Array, Array]:
    """Half of a quaternion's rotation vector, and its derivative by a turn on its right."""
    sine = np.linalg.norm(rotation[:, :3], axis=1)
    half = np.arctan2(sine, rotation[:, 3])
    is_small = sine < 1e-4
    safe = np.where(is_small, 1.0, half)
    vector = rotation[:, :3] * np.where(is_small, 1.0 + sine**2 / 6.0, safe / np.sin(safe))[:, None]
    # the inverse of the right Jacobian of SO(3), 1 + V + (1 - h cot h) V^2 / h^2 with V the cross
    # product by half of the rotation vector, and h its length
    factor = np.where(is_small, 1.0 / 3.0, (1.0 - safe / np.tan(safe)) / safe**2)
    cross = _cross(vector)
    return vector, 0.5 * (np.eye(3) + cross + factor[:, None, None] * cross @ cross)


def _conjugate(quaternion: Array) -> Array:
    return np.asarray(quaternion * np.array([-1.0, -1.0, -1.0, 1.0]))


def _product(left: Array, right: Array) -> Array:
    vector = (left[:, 3:] * right[:, :3] + right[:, 3:] * left[:, :3]) + np.cross(
        left[:, :3], right[:, :3]
    )
    scalar = left[:, 3] * right[:, 3] - np.sum(left[:, :3] * right[:, :3], axis=1)
    return np.column_stack([vector, scalar])


def _quaternion(rotation_vector: Array) -> Array:
    angle = np.linalg.norm(rotation_vector, axis=1, keepdims=True)
    # sin(angle / 2) / angle, of any angle: numpy's sinc(x) is sin(pi x) / (pi x)
    return np.column_stack(
        [0.5 * np.sinc(0.5 * angle / np.pi) * rotation_vector, np.cos(0.5 * angle)]
    )


def _cross(vector: Array) -> Array:
    x, y, z = vector.T
    zero = np.zeros_like(x)
    rows = [[zero, -z, y], [z, zero, -x], [-y, x, zero]]
    return np.stack([np.stack(row, -1) for row in rows], axis=1)


def _matrix(quaternion: Array) -> Array:
    cross = _cross(quaternion[:, :3])
    return np.asarray(np.eye(3) + 2.0 * (quaternion[:, 3, None, None] * cross + cross @ cross))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for error in RotationError:
            found = minimize(read_g2o(path), error)
            print(f"{path} ({error.name}): cost {found.initial_cost!r} -> {found.cost!r}")
            print(f"    {found.iterations} steps, largest gradient {found.gradient_norm:.1e}")
