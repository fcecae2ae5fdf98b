"""Where the solve of a pose graph starts: at the poses of the file, or at better ones.

Input: a graph. Output: a `Start`. Cost: the chordal estimate takes two sparse factorisations on the
host, growing some solves, the others a few passes over the arrays.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from caspar.errors import FileFormatError, InputError, OptionError
from caspar.initialize.chordal import chordal
from caspar.io.graphs.chained import chained_poses, mean_points, with_plain_edges
from caspar.io.graphs.kind import PoseGraphKind
from caspar.io.graphs.pose_graph import PoseGraph
from caspar.io.rigid_motions import compose_se2, compose_se3
from caspar.io.rotations import FloatArray
from caspar.pose_graph.errors import chi2
from caspar.pose_graph.grow import SolverOf, can_grow, grown
from caspar.solver.solver import Solver

FAR = 10.0
"""A start is far off if its chi2 is more than so many times that of the chordal estimate."""

SCATTERED = 100.0
"""A map of landmarks is scattered if chi2 is more than so many times the number of errors."""


class Initialize(Enum):
    """Where a solve starts.

    FILE: the poses of the graph. TREE: composed along as few edges as possible from the first pose,
    or from one that is held. CHORDAL: `caspar.initialize.chordal`. GROW: more and more poses are
    solved; see `caspar.pose_graph.grow`. AUTO: the poses of the graph, unless the chordal estimate
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
    initialize: str | Initialize = "auto",
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
    try:
        choice = Initialize(initialize)
    except ValueError:
        allowed = ", ".join(repr(one.value) for one in Initialize)
        raise OptionError(f"initialize={initialize!r}: it must be one of {allowed}") from None
    given = chi2(graph)

    def started(graph: PoseGraph, choice: Initialize) -> Start:
        return Start(graph, choice, chi2(graph), given)

    if choice is Initialize.AUTO:
        best = started(graph, Initialize.FILE)
        if with_plain_edges(graph).num_edges > 0:
            estimate = started(_moved(graph, chordal(graph)), Initialize.CHORDAL)
            if np.isfinite(estimate.chi2) and not given <= FAR * estimate.chi2:
                best = estimate
        if not (_is_scattered(best) and can_grow(graph)):
            return best
        choice = Initialize.GROW
    if choice is Initialize.GROW:
        return started(grown(graph, solver_of, **options), choice)
    if choice is Initialize.TREE:
        return started(_moved(graph, _along_tree(graph)), choice)
    if choice is Initialize.CHORDAL:
        return started(_moved(graph, chordal(graph)), choice)
    return started(graph, choice)


def _is_scattered(start: Start) -> bool:
    """Whether a map of landmarks is far from what its information says."""
    graph = start.graph
    seen = graph.sightings.measurement.size
    num_edges = with_plain_edges(graph).num_edges
    num_errors = num_edges * graph.kind.tangent_dim + seen
    return seen > 0 and not start.chi2 <= SCATTERED * num_errors


def _moved(graph: PoseGraph, poses: FloatArray) -> PoseGraph:
    """The graph with other poses, and landmarks where these see them."""
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
