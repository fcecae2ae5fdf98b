"""Poses of a pose graph from its measurements, without a start.

Two linear least-squares problems: rotations first, as any matrices, each moved to the nearest
rotation afterwards; then translations, with these rotations. What is least is the chordal distance
between measured and estimated rotations, which is why no start is needed (Carlone, Tron, Daniilidis
and Dellaert, "Initialization techniques for 3D SLAM", ICRA 2015).

Input: a pose graph. Output: its poses. Cost: two sparse factorisations on the host.
"""

from typing import NamedTuple

import numpy as np
import qdldl
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation

from caspar.errors import InputError
from caspar.io.graphs.chained import with_plain_edges
from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.rotations import FloatArray

_LEAST_SHARE = 1e-12
"""Weights of edges over the largest one, below which an edge says nothing."""


def chordal(graph: PoseGraph) -> FloatArray:
    """Find poses that agree with the measurements as well as a linear estimate can.

    An edge counts by the mean of its rotation's information in the first problem, and by that of
    its translation's in the second. Poses that the graph holds stay as they are, or else the first
    pose of each part of the graph that edges connect.

    Args:
        graph: As `caspar.io.read_g2o` returns it. The poses that do not stay are not looked at.

    Returns:
        (num_poses, storage_dim) world_T_pose, in the order and storage of `graph.poses`.

    Raises:
        InputError: A measurement is not finite, or its information is not.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> text = '''EDGE_SE2 0 1 1.0 0 0 1 0 0 1 0 1
        ... EDGE_SE2 1 2 1.0 0 0 1 0 0 1 0 1
        ... EDGE_SE2 0 2 2.3 0 0 1 0 0 1 0 1'''
        >>> _ = Path("chain.g2o").write_text(text)
        >>> caspar.initialize.chordal(caspar.io.read_g2o("chain.g2o"))[:, 2].round(3)
        array([0. , 1.1, 2.2])
    """
    graph = with_plain_edges(graph)
    for name, array in (
        ("measurement", graph.measurement),
        ("sqrt_information", graph.sqrt_information),
    ):
        _check_finite(name, array)
    if graph.num_poses == 0 or len(graph.index_a) == 0:
        return graph.poses.copy()
    dim = 2 if graph.kind is PoseGraphKind.SE2 else 3
    edges = _Edges(graph.index_a.astype(np.int64), graph.index_b.astype(np.int64))
    is_held = _held(graph, edges)
    squares = (graph.sqrt_information**2).sum(axis=1)
    rotations, translations = _parts(graph.measurement, dim)
    given_rotations, given_translations = _parts(graph.poses, dim)
    found = _rotations(edges, rotations, squares[:, dim:].mean(axis=1), is_held, given_rotations)
    moves = np.einsum("nij,nj->ni", found[edges.start], translations)
    places = _translations(edges, moves, squares[:, :dim].mean(axis=1), is_held, given_translations)
    poses = _stored(found, places)
    poses[is_held] = graph.poses[is_held]
    return poses


class _Edges(NamedTuple):
    """(num_edges,) the poses where each edge begins and ends."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]


def _check_finite(name: str, array: FloatArray) -> None:
    bad = np.flatnonzero(~np.isfinite(array).all(axis=tuple(range(1, array.ndim))))
    if len(bad) > 0:
        raise InputError(f"{name}[{bad[0]}] is not finite: {len(bad)} of {len(array)} edges")


def _held(graph: PoseGraph, edges: _Edges) -> NDArray[np.bool_]:
    """The poses that stay: those that the graph holds, or the first one of each part."""
    count = graph.num_poses
    joined = sparse.coo_matrix((np.ones(len(edges.start)), edges), (count, count))
    num_parts, part = connected_components(joined, directed=False)
    is_held = graph.fixed.copy()
    has_held = np.zeros(num_parts, dtype=bool)
    has_held[part[is_held]] = True
    _, first = np.unique(part, return_index=True)
    is_held[first[~has_held]] = True
    return is_held


def _rotations(
    edges: _Edges,
    measured: FloatArray,
    weights: FloatArray,
    is_held: NDArray[np.bool_],
    given: FloatArray,
) -> FloatArray:
    """Rotations with R_end = R_start R as nearly as can be: (num_poses, d, d)."""
    count, dim = given.shape[:2]
    num_edges = len(edges.start)
    # the columns of transpose(R_end) are transpose(R) times those of transpose(R_start)
    row = np.arange(num_edges * dim).reshape(num_edges, dim)
    end = dim * edges.end[:, None] + np.arange(dim)
    start = dim * edges.start[:, None] + np.arange(dim)
    each_row = np.repeat(row[:, :, None], dim, axis=2)
    each_column = np.repeat(start[:, None, :], dim, axis=1)
    turned = np.swapaxes(measured, 1, 2)
    entries = np.concatenate([np.ones(row.size), -turned.reshape(-1)])
    rows = np.concatenate([row.reshape(-1), each_row.reshape(-1)])
    columns = np.concatenate([end.reshape(-1), each_column.reshape(-1)])
    system = sparse.csr_matrix((entries, (rows, columns)), (row.size, count * dim))
    values = np.swapaxes(given, 1, 2).reshape(count * dim, dim)
    found = _least_squares(
        system,
        np.zeros((row.size, dim)),
        np.repeat(weights, dim),
        np.repeat(is_held, dim),
        values,
    )
    return _nearest_rotations(np.swapaxes(found.reshape(count, dim, dim), 1, 2))


def _translations(
    edges: _Edges,
    moves: FloatArray,
    weights: FloatArray,
    is_held: NDArray[np.bool_],
    given: FloatArray,
) -> FloatArray:
    """Places with t_end = t_start + move as nearly as can be: (num_poses, d)."""
    num_edges = len(moves)
    row = np.arange(num_edges)
    entries = np.concatenate([np.ones(num_edges), -np.ones(num_edges)])
    columns = np.concatenate([edges.end, edges.start])
    system = sparse.csr_matrix(
        (entries, (np.concatenate([row, row]), columns)), (num_edges, len(given))
    )
    return _least_squares(system, moves, weights, is_held, given)


def _least_squares(
    system: sparse.csr_matrix,
    wanted: FloatArray,
    weights: FloatArray,
    is_held: NDArray[np.bool_],
    given: FloatArray,
) -> FloatArray:
    """The x with least weighted squares of `system` x - wanted, some rows of x held.

    `system` is (m, n), `wanted` (m, k), `weights` (m,) and not negative, `is_held` (n,), `given`
    (n, k).
    """
    found = given.copy()
    free = np.flatnonzero(~is_held)
    if len(free) == 0:
        return found
    # an edge without information still connects: it weighs next to nothing
    least = _LEAST_SHARE * weights.max(initial=0.0)
    weighted = sparse.diags_array(np.maximum(weights, least if least > 0.0 else 1.0))
    own = system[:, free]
    target = wanted - system[:, np.flatnonzero(is_held)] @ given[is_held]
    normal = sparse.csc_matrix(own.T @ weighted @ own)
    right = own.T @ (weighted @ target)
    solver = qdldl.Solver(sparse.triu(normal, format="csc"), upper=True)
    found[free] = np.stack([solver.solve(column) for column in right.T], axis=1)
    return found


def _nearest_rotations(matrices: FloatArray) -> FloatArray:
    """The rotation nearest to each matrix, (n, d, d), by Frobenius' norm."""
    left, _, right = np.linalg.svd(matrices)
    left[:, :, -1] *= np.sign(np.linalg.det(left @ right))[:, None]
    nearest: FloatArray = left @ right
    return nearest


# -- storage ---------------------------------------------------------------------------------------


def _parts(poses: FloatArray, dim: int) -> tuple[FloatArray, FloatArray]:
    """Rotation matrices and translations of poses in storage order."""
    if dim == 2:
        cosine, sine = poses[:, 0], poses[:, 1]
        rows = [np.stack([cosine, -sine], axis=1), np.stack([sine, cosine], axis=1)]
        return np.stack(rows, axis=1), poses[:, 2:]
    return Rotation.from_quat(poses[:, :4]).as_matrix(), poses[:, 4:]


def _stored(rotations: FloatArray, translations: FloatArray) -> FloatArray:
    """Poses in storage order."""
    if rotations.shape[1] == 2:
        turns = rotations[:, :, 0]
    else:
        turns = Rotation.from_matrix(rotations).as_quat()
    return np.concatenate([turns, translations], axis=1)
