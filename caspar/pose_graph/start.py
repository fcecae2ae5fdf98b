"""Choose where a pose graph's solve starts: at the poses of the file, or at better ones.

Input: a graph. Output: a `Start`. Cost: the chordal estimate takes two sparse factorisations on the
host, growing some solves, the others a few passes over the arrays.

Also here: a start for maps of landmarks: poses are added some at a time, and solved each time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError, InputError
from caspar.frontend.factors.factor import Factor
from caspar.initialize.chordal import chordal
from caspar.io.graphs.chained import chained_poses, mean_points, with_plain_edges
from caspar.io.graphs.pose_graph import (
    Landmarks,
    PoseGraph,
    PoseGraphKind,
    Priors,
    SensorEdges,
    Sightings,
)
from caspar.io.rotations import (
    FloatArray,
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    transform,
)
from caspar.options import choice
from caspar.pose_graph.errors import chi2
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
    """Find start values by solving more and more of a graph: it has other poses and landmarks then.

    Poses that are held stay. Landmarks without a sighting, of which only bearings are known, begin
    where the graph has them. Raises an `InputError` if a pose has no edge to one of a lower id.
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

    Returns the part, and the rows in `graph` of its poses and of its landmarks.
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


FAR = 10.0
"""A start is far off if its chi2 is more than so many times that of the chordal estimate."""

SCATTERED = 100.0
"""A map of landmarks is scattered if chi2 is more than so many times the number of errors."""


InitializeName = Literal["auto", "file", "tree", "chordal", "grow"]
"""Values of `Initialize`, as type checkers and editors want them."""


class Initialize(Enum):
    """The choice of start values.

    FILE: the poses of the graph. TREE: composed along as few edges as possible from the first pose,
    or from one that is held. CHORDAL: `caspar.initialize.chordal`. GROW: more and more poses are
    solved; see `caspar.pose_graph.start`. AUTO: the poses of the graph, unless the chordal estimate
    is far better; if there are landmarks and both are far from what the information says, GROW.
    """

    AUTO = "auto"
    FILE = "file"
    TREE = "tree"
    CHORDAL = "chordal"
    GROW = "grow"


@dataclass(frozen=True, eq=False)
class Start:
    """Start values of a graph.

    Attributes:
        graph: The graph with the poses and landmarks to start from.
        choice: How they were found; never `AUTO`.
        chi2: Of `graph`.
        file_chi2: Of the poses and landmarks of the graph as it was given.
    """

    graph: PoseGraph
    choice: Initialize
    chi2: float
    file_chi2: float


def start_poses(
    graph: PoseGraph,
    initialize: InitializeName | Initialize = "auto",
    solver_of: SolverOf = Solver,
    **options: Any,
) -> Start:
    """Choose start values.

    What is held stays where it is. If the poses change, landmarks that were seen move to the mean
    of where their sightings see them then; others, of which only bearings are known, stay.

    Args:
        graph: As a reader returns it.
        initialize: One of `Initialize`, or its value.
        solver_of: Makes a solver of factors, for `GROW`.
        options: Arguments of `problem`, for `GROW`.

    Returns:
        The start. `AUTO` takes the chordal estimate if the graph's chi2 is more than `FAR` times
        its. A graph with sightings whose chi2 is then still more than `SCATTERED` times the number
        of errors is grown, if each pose has an edge to one of a lower id.

    Raises:
        InputError: `TREE`, and edges do not connect the graph; `CHORDAL`, and a measurement is
            not finite; or `GROW`, and a pose has no edge to one of a lower id.
        OptionError: `initialize` is something else.
    """
    chosen = choice(Initialize, "initialize", initialize)
    given = chi2(graph)

    def started(graph: PoseGraph, choice: Initialize) -> Start:
        return Start(graph, choice, chi2(graph), given)

    if chosen is Initialize.AUTO:
        best = started(graph, Initialize.FILE)
        if with_plain_edges(graph).num_edges > 0:
            estimate = started(_moved(graph, chordal(graph)), Initialize.CHORDAL)
            if np.isfinite(estimate.chi2) and not given <= FAR * estimate.chi2:
                best = estimate
        if not (_is_scattered(best) and can_grow(graph)):
            return best
        chosen = Initialize.GROW
    if chosen is Initialize.GROW:
        return started(grown(graph, solver_of, **options), chosen)
    if chosen is Initialize.TREE:
        return started(_moved(graph, _along_tree(graph)), chosen)
    if chosen is Initialize.CHORDAL:
        return started(_moved(graph, chordal(graph)), chosen)
    return started(graph, chosen)


def _is_scattered(start: Start) -> bool:
    """Return whether a map of landmarks is far from what its information says."""
    graph = start.graph
    seen = graph.sightings.measurement.size
    num_edges = with_plain_edges(graph).num_edges
    num_errors = num_edges * graph.kind.tangent_dim + seen
    return seen > 0 and not start.chi2 <= SCATTERED * num_errors


def _moved(graph: PoseGraph, poses: FloatArray) -> PoseGraph:
    landmarks = graph.landmarks
    points, counts = mean_points(graph.kind, poses, graph.sightings, graph.num_landmarks)
    is_kept = landmarks.fixed | (counts == 0)
    points = np.where(is_kept[:, None], landmarks.points, points)
    return replace(graph, poses=poses, landmarks=replace(landmarks, points=points))


def _along_tree(graph: PoseGraph) -> FloatArray:
    """Poses along a tree from the first pose that is held, or else the first of all."""
    root = int(np.argmax(graph.fixed)) if graph.fixed.any() else 0
    order = np.arange(graph.num_poses)
    order[[0, root]] = order[[root, 0]]
    place = np.argsort(order)
    plain = with_plain_edges(graph)
    ends = np.stack([place[plain.index_a], place[plain.index_b]], axis=1).astype(np.int32)
    try:
        chained = chained_poses(graph.kind, plain.measurement, ends, graph.ids[order], "graph")
    except FileFormatError as error:
        raise InputError(
            "initialize='tree': edges do not connect all poses; use 'chordal' or 'file'"
        ) from error
    compose = compose_se2 if graph.kind is PoseGraphKind.SE2 else compose_se3
    poses = compose(graph.poses[root], chained[place])
    is_kept = graph.fixed | (np.arange(graph.num_poses) == root)
    return np.where(is_kept[:, None], graph.poses, poses)
