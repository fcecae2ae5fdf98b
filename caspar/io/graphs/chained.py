"""Start values for vertices that a file does not declare: along edges, and from sightings.

Poses are exact along a spanning tree of the edges. The tree has the fewest edges from the root to
each node, because every edge on the way adds its error. Initial chi2 of public graphs with this
tree, against walking from each id to the next: M3500 4.74e4 (2.57e6), kitti_05 1.23e5 (3.68e6),
parking-garage 47.6 (1.67e4), smallGrid3D 4.77e4 (1.16e5), sphere2500 3.26e6 (2.55e6).

Cost: once per file; one visit to each edge in Python, log(depth) passes over the poses in NumPy.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.graphs.pose_graph import (
    PoseGraph,
    PoseGraphKind,
    SensorEdges,
    Sightings,
    no_sensor_edges,
)
from caspar.io.rotations import (
    FloatArray,
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    transform,
)


def chained_poses(
    kind: PoseGraphKind,
    measurement: FloatArray,
    ends: NDArray[np.int32],
    ids: NDArray[np.int64],
    path: str,
) -> FloatArray:
    """Return poses that agree with a spanning tree of edges, for a file without vertices.

    Edges have a measurement a_T_b, and rows of poses as their ends. Ids and path are for messages.
    The first pose is the identity. Raises a `FileFormatError` if the edges do not connect all
    poses, or a pose is too large for float64.
    """
    if len(ids) == 0:
        return np.empty((0, kind.storage_dim))
    if kind is PoseGraphKind.SE2:
        compose, invert = compose_se2, invert_se2
    else:
        compose, invert = compose_se3, invert_se3
    parents, tree_edges = spanning_tree(ends, len(ids))
    is_unreached = parents == NO_PARENT
    is_unreached[0] = False
    if is_unreached.any():
        raise FileFormatError(
            f"{path}: the file declares no vertices, and its edges do not connect "
            f"vertex {ids[np.argmax(is_unreached)]} with vertex {ids[0]}, so that its pose is "
            "not known; add VERTEX lines"
        )
    if len(ids) == 1:
        return np.array([kind.identity])
    is_forward = ends[tree_edges, 0] == parents
    steps = measurement[tree_edges]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        pose_from_parent = np.where(is_forward[:, None], steps, invert(steps))
        poses = poses_along_tree(parents, pose_from_parent, kind.identity, compose)
    is_finite = np.isfinite(poses).all(axis=1)
    if not is_finite.all():
        raise FileFormatError(
            f"{path}: the file declares no vertices, and the pose of vertex "
            f"{ids[np.argmin(is_finite)]}, composed along edges from vertex {ids[0]}, is too large "
            "for float64; add VERTEX lines or mend the measurements"
        )
    return poses


def motions(kind: PoseGraphKind, edges: SensorEdges) -> FloatArray:
    """Return (n, storage_dim) measured motions of poses, a_T_b, of edges between their sensors."""
    in_plane = kind is PoseGraphKind.SE2
    compose, invert = (compose_se2, invert_se2) if in_plane else (compose_se3, invert_se3)
    with np.errstate(over="ignore", invalid="ignore"):
        return compose(compose(edges.offset_a, edges.measurement), invert(edges.offset_b))


def with_plain_edges(graph: PoseGraph) -> PoseGraph:
    """Return the graph with edges between sensors as edges between poses, to find a start.

    The information of such an edge stays that of the sensors' motion, which is not exact.
    """
    more = graph.sensor_edges
    if len(more.index_a) == 0:
        return graph
    return replace(
        graph,
        index_a=np.concatenate([graph.index_a, more.index_a]),
        index_b=np.concatenate([graph.index_b, more.index_b]),
        measurement=np.concatenate([graph.measurement, motions(graph.kind, more)]),
        sqrt_information=np.concatenate([graph.sqrt_information, more.sqrt_information]),
        sensor_edges=no_sensor_edges(graph.kind.storage_dim, graph.kind.tangent_dim),
    )


def seen_points(
    kind: PoseGraphKind, poses: FloatArray, sightings: Sightings, ids: NDArray[np.int64], path: str
) -> FloatArray:
    """Return the mean of where sightings see each landmark, for a file that declares none.

    Ids and path are for messages. Returns (num_landmarks, dim) world coordinates. Raises a
    `FileFormatError` if a landmark has no sighting, or is too far away for float64.
    """
    points, num_sightings = mean_points(kind, poses, sightings, len(ids))
    is_good = (num_sightings > 0) & np.isfinite(points).all(axis=1)
    if not is_good.all():
        row = int(np.argmin(is_good))
        raise FileFormatError(
            f"{path}: the file declares no landmarks, and the place of vertex {ids[row]} "
            + ("has no sighting" if num_sightings[row] == 0 else "is too large for float64")
            + "; add VERTEX lines"
        )
    return points


def mean_points(
    kind: PoseGraphKind, poses: FloatArray, sightings: Sightings, num_landmarks: int
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Find the mean of where sightings see each landmark, and the number of its sightings.

    Poses are (num_poses, storage_dim); means, (num_landmarks, dim), are zero without a sighting.
    """
    compose = compose_se2 if kind is PoseGraphKind.SE2 else compose_se3
    with np.errstate(over="ignore", invalid="ignore"):
        sensors = compose(poses[sightings.pose], sightings.offset)
        seen = transform(sensors, sightings.measurement)
        sums = np.zeros((num_landmarks, kind.dim))
        np.add.at(sums, sightings.landmark, seen)
    counts = np.bincount(sightings.landmark, minlength=num_landmarks)
    return sums / np.maximum(counts, 1)[:, None], counts


NO_PARENT = -1


def spanning_tree(
    ends: NDArray[np.int32], num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find a shortest way, in number of edges, from node 0 to every node (breadth first).

    Edges join (num_edges, 2) nodes; of two ways of equal length the one found first in their order
    is taken. Returns the parent of each node and the edge that leads there, (num_nodes,) each, both
    `NO_PARENT` for node 0 and for nodes that no edges connect to it.
    """
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    for edge, (first, second) in enumerate(ends.tolist()):
        neighbours[first].append((edge, second))
        neighbours[second].append((edge, first))
    parents = [NO_PARENT] * num_nodes
    edges = [NO_PARENT] * num_nodes
    waiting = deque([0])
    while waiting:
        parent = waiting.popleft()
        for edge, node in neighbours[parent]:
            if node != 0 and parents[node] == NO_PARENT:
                parents[node] = parent
                edges[node] = edge
                waiting.append(node)
    return np.array(parents, dtype=np.int64), np.array(edges, dtype=np.int64)


def poses_along_tree(
    parents: NDArray[np.int64],
    pose_from_parent: FloatArray,
    identity: Sequence[float],
    compose: Callable[[FloatArray, FloatArray], FloatArray],
) -> FloatArray:
    """Compose the poses, parent_T_node, on the way from the root to every node of a tree.

    The row of the root, whose parent is `NO_PARENT` and whose pose is `identity`, is not used.
    """
    is_root = parents == NO_PARENT
    ancestors = np.where(is_root, np.arange(len(parents)), parents)
    poses = np.where(is_root[:, None], np.asarray(identity), pose_from_parent)
    # Each pass doubles the distance that a pose spans (ancestor_T_node), so a chain of a million
    # nodes takes twenty passes in NumPy instead of a million steps in Python.
    while not is_root[ancestors].all():
        poses = compose(poses[ancestors], poses)
        ancestors = ancestors[ancestors]
    return poses
