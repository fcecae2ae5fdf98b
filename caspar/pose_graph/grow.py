"""A start for maps of landmarks: poses are added some at a time, and solved each time.

Landmarks close loops, but say nothing that a chordal estimate of rotations could use. From dead
reckoning they lie scattered, and a solve of everything at once ends in a wrong minimum. Poses that
are added to a part that is solved already are near their place, and so are the landmarks that
these poses are the first to see.

Input: a graph whose poses, in the order of their ids, each have an edge to an earlier one. Output:
its poses and landmarks. Cost: about `STAGES` solves, half of the whole one on average.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.io.graphs.chained import with_plain_edges
from caspar.io.graphs.kind import PoseGraphKind
from caspar.io.graphs.pose_graph import (
    Landmarks,
    PoseGraph,
    Priors,
    SensorEdges,
    Sightings,
)
from caspar.io.rigid_motions import (
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    transform,
)
from caspar.pose_graph.problem import problem, solved_graph
from caspar.progress import phase
from caspar.solver.solver import Solver

STAGES = 16
LEAST_POSES = 100
"""Poses of a stage, fewer only in the last one."""

_STAGE_ITERATIONS = 20

SolverOf = Callable[[tuple[Factor, ...]], Solver]


def can_grow(graph: PoseGraph) -> bool:
    """Tell whether each pose but the first has an edge to one of a lower id."""
    _, parent_edge = _parents(with_plain_edges(graph))
    return bool((parent_edge[np.argsort(graph.ids, kind="stable")][1:] >= 0).all())


def grown(graph: PoseGraph, solver_of: SolverOf, **options: Any) -> PoseGraph:
    """Find start values by solving more and more of a graph.

    Poses that are held stay. Landmarks without a sighting, of which only bearings are known, begin
    where the graph has them.

    Args:
        graph: As a reader returns it.
        solver_of: Makes a solver of factors, or finds one that was made before.
        options: Arguments of `problem`.

    Returns:
        The graph with other poses and landmarks.

    Raises:
        InputError: A pose has no edge to one of a lower id.
    """
    order = np.argsort(graph.ids, kind="stable")
    plain = with_plain_edges(graph)
    parents, parent_edge = _parents(plain)
    orphans = order[1:][parent_edge[order[1:]] < 0]
    if len(orphans) > 0:
        raise InputError(
            f"initialize='grow': pose {graph.ids[orphans[0]]} has no edge to a pose of a lower id; "
            "use 'chordal' or 'file'"
        )
    size = max(LEAST_POSES, -(-graph.num_poses // STAGES))
    is_in = np.zeros(graph.num_poses, dtype=bool)
    for start in range(0, graph.num_poses, size):
        added = order[start : start + size]
        graph = _placed(graph, plain, added, (parents, parent_edge), is_in)
        is_in[added] = True
        if is_in.all():
            break
        with phase(f"growing: {is_in.sum():,} of {graph.num_poses:,} poses"):
            graph = _solved(graph, is_in, solver_of, options)
    return graph


def _parents(graph: PoseGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The nearest pose of a lower id that an edge leads to, and that edge; -1: there is none."""
    rank = np.argsort(np.argsort(graph.ids, kind="stable"), kind="stable")
    first, second = rank[graph.index_a], rank[graph.index_b]
    later = np.where(first > second, graph.index_a, graph.index_b)
    earlier = np.where(first > second, graph.index_b, graph.index_a)
    # Sorted by the rank of the earlier pose, so that of several edges the nearest is written last.
    by_rank = np.argsort(rank[earlier], kind="stable")
    parents = np.full(graph.num_poses, -1)
    edges = np.full(graph.num_poses, -1)
    parents[later[by_rank]] = earlier[by_rank]
    edges[later[by_rank]] = by_rank
    return parents, edges


def _placed(
    graph: PoseGraph,
    plain: PoseGraph,
    added: NDArray[np.int64],
    tree: tuple[NDArray[np.int64], NDArray[np.int64]],
    was_in: NDArray[np.bool_],
) -> PoseGraph:
    """The graph with added poses beside their parents, and new landmarks where they are seen."""
    parents, parent_edge = tree
    in_plane = graph.kind is PoseGraphKind.SE2
    compose, invert = (compose_se2, invert_se2) if in_plane else (compose_se3, invert_se3)
    edges = parent_edge[added]
    is_forward = plain.index_b[edges] == added
    steps = plain.measurement[edges]
    steps = np.where(is_forward[:, None], steps, invert(steps))
    poses = graph.poses.copy()
    for row, parent, step in zip(added.tolist(), parents[added].tolist(), steps, strict=True):
        if parent >= 0 and not graph.fixed[row]:
            poses[row] = compose(poses[parent], step)
    seen = graph.sightings
    landmarks = graph.landmarks
    is_known = landmarks.fixed.copy()
    is_known[seen.landmark[was_in[seen.pose]]] = True
    rank = np.full(graph.num_poses, -1)
    rank[added] = np.arange(len(added))
    new = np.flatnonzero((rank[seen.pose] >= 0) & ~is_known[seen.landmark])
    new = new[np.argsort(-rank[seen.pose[new]], kind="stable")]  # the first sighting is last
    sensors = compose(poses[seen.pose[new]], seen.offset[new])
    points = landmarks.points.copy()
    points[seen.landmark[new]] = transform(sensors, seen.measurement[new])
    return replace(graph, poses=poses, landmarks=replace(landmarks, points=points))


def _solved(
    graph: PoseGraph, is_in: NDArray[np.bool_], solver_of: SolverOf, options: dict[str, Any]
) -> PoseGraph:
    """The graph with solved values for those of its poses that are in, and their landmarks."""
    part, rows, landmark_rows = part_of(graph, is_in)
    task = problem(part, **options)
    result = solver_of(task.factors).solve(
        task.arrays, fixed=task.fixed, max_iterations=_STAGE_ITERATIONS, verbose=False
    )
    solved = solved_graph(part, result)
    poses, points = graph.poses.copy(), graph.landmarks.points.copy()
    poses[rows] = solved.poses
    points[landmark_rows] = solved.landmarks.points
    return replace(graph, poses=poses, landmarks=replace(graph.landmarks, points=points))


def part_of(
    graph: PoseGraph, is_in: NDArray[np.bool_]
) -> tuple[PoseGraph, NDArray[np.int64], NDArray[np.int64]]:
    """Cut some poses out of a graph, with the landmarks that they see and all that joins them.

    Args:
        graph: As a reader returns it.
        is_in: (num_poses,) the poses to keep.

    Returns:
        The part, and the rows in `graph` of its poses and of its landmarks.
    """
    rows = np.flatnonzero(is_in)
    place = np.cumsum(is_in) - 1
    groups = (graph.sightings, graph.bearings)
    is_seen = np.zeros(graph.num_landmarks, dtype=bool)
    for group in groups:
        is_seen[group.landmark[is_in[group.pose]]] = True
    landmark_rows = np.flatnonzero(is_seen)
    landmark_place = np.cumsum(is_seen) - 1
    edges = is_in[graph.index_a] & is_in[graph.index_b]
    landmarks = graph.landmarks
    sightings, bearings = (
        Sightings(
            place[group.pose[kept]].astype(np.int32),
            landmark_place[group.landmark[kept]].astype(np.int32),
            *(getattr(group, name)[kept] for name in _MEASURED),
        )
        for group in groups
        for kept in (is_in[group.pose],)
    )
    part = replace(
        graph,
        ids=graph.ids[rows],
        poses=graph.poses[rows],
        fixed=graph.fixed[rows],
        index_a=place[graph.index_a[edges]].astype(np.int32),
        index_b=place[graph.index_b[edges]].astype(np.int32),
        measurement=graph.measurement[edges],
        sqrt_information=graph.sqrt_information[edges],
        landmarks=Landmarks(
            *(getattr(landmarks, name)[landmark_rows] for name in ("ids", "points", "fixed"))
        ),
        sensor_edges=_kept_between(graph.sensor_edges, is_in, place),
        sightings=sightings,
        bearings=bearings,
        pose_priors=_kept(graph.pose_priors, is_in, place),
        position_priors=_kept(graph.position_priors, is_in, place),
        landmark_priors=_kept(graph.landmark_priors, is_seen, landmark_place),
    )
    return part, rows, landmark_rows


def _kept_between(
    edges: SensorEdges, is_in: NDArray[np.bool_], place: NDArray[np.int64]
) -> SensorEdges:
    kept = is_in[edges.ends].all(axis=1)
    ends = place[edges.ends[kept]].astype(np.int32)
    offsets = (edges.offset_a[kept], edges.offset_b[kept])
    measured = (edges.measurement[kept], edges.sqrt_information[kept])
    return SensorEdges(ends[:, 0], ends[:, 1], *offsets, *measured)


_MEASURED = ("offset", "measurement", "sqrt_information")


def _kept(priors: Priors, is_in: NDArray[np.bool_], place: NDArray[np.int64]) -> Priors:
    kept = is_in[priors.index]
    return Priors(
        place[priors.index[kept]].astype(np.int32),
        *(getattr(priors, name)[kept] for name in _MEASURED),
    )
