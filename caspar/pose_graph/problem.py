"""Make a `Solver`'s input from a pose graph: factors, arrays, and held nodes.

Input: a graph. Output: a `Problem`. Cost: a few passes over the arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor
from caspar.io.graphs.pose_graph import PoseGraph, Sightings
from caspar.pose_graph.factors import factors as factors_of
from caspar.pose_graph.factors import node_types
from caspar.solver.result.result import SolveResult

ROBUST = ("edge", "sensor_edge", "sighting", "bearing")
"""Factors that a loss applies to; priors are trusted."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A pose graph for `caspar.Solver`.

    Attributes:
        factors: Those that the graph has instances of; see `caspar.pose_graph.factors`.
        arrays: For `Solver.solve`; the node types are `Pose` and `Landmark`.
        fixed: For `Solver.solve`: by node type (n,) booleans.
        first: Rows of the poses that are held only because nothing else says where the graph is.
        node_types: By name, those that `arrays` has; factors of your own take them.
    """

    factors: tuple[Factor, ...]
    arrays: Mapping[str, Any]
    fixed: Mapping[str, NDArray[np.bool_]]
    first: NDArray[np.int64]
    node_types: Mapping[str, type]

    def __repr__(self) -> str:
        """Factors and sizes; the arrays are too large to be shown."""
        factors = ", ".join(factor.name for factor in self.factors)
        nodes = ", ".join(f"{len(self.arrays[name])} {name}" for name in self.node_types)
        return f"Problem(factors: {factors}; node types: {nodes})"


def problem(
    graph: PoseGraph, *, fix_first: bool | None = None, loss: Any = None, loss_scale: float = 1.0
) -> Problem:
    """Make factors and arrays of a graph. Twice the cost without loss is g2o's chi2.

    Args:
        graph: As a reader returns it.
        fix_first: Whether the first pose of each part of the graph that measurements connect is
            held, besides what the graph holds. None: in parts that have neither a prior nor
            anything that is held, because their place is free otherwise.
        loss: Of `caspar.loss`, for edges, sightings and bearings; None: none.
        loss_scale: The length of a whitened residual from which on it is taken for large.

    Raises:
        InputError: The graph has no measurements.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 1 0 0 1 0 1")
        >>> task = caspar.pose_graph.problem(caspar.io.read_g2o("pair.g2o"))
        >>> result = caspar.Solver(task.factors).solve(task.arrays, fixed=task.fixed)
        >>> result.values["Pose"][1, 2:].round(3)  # x and y
        array([1., 2.])
    """
    known = factors_of(graph.kind)
    terms = _terms(graph)
    if not terms:
        raise InputError(
            f"{graph!r} has no measurements: there is nothing to solve. A file with vertices only "
            "is a result, not a problem"
        )
    factors = []
    for name, arguments in terms.items():
        factor = known[name]
        if loss is not None and name in ROBUST:
            factor = factor.with_loss(loss)
            arguments["loss_scale"] = loss_scale
        factors.append(factor)
    arrays: dict[str, Any] = {"Pose": graph.poses, **terms}
    names = {name for arguments in terms.values() for name in arguments}
    fixed, first = _fixed(graph, fix_first)
    if "landmark" in names:
        arrays["Landmark"] = graph.landmarks.points
    else:
        del fixed["Landmark"]
    if not names & {"pose", "a"}:
        del arrays["Pose"], fixed["Pose"]
    types = {name: kind for name, kind in node_types(graph.kind).items() if name in arrays}
    return Problem(tuple(factors), arrays, fixed, first, types)


def solved_graph(graph: PoseGraph, result: SolveResult) -> PoseGraph:
    """Return the graph with the poses and landmarks of a solve of its `problem`.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 1 0 0 1 0 1")
        >>> graph = caspar.io.read_g2o("pair.g2o")
        >>> task = caspar.pose_graph.problem(graph)
        >>> result = caspar.Solver(task.factors).solve(task.arrays, fixed=task.fixed)
        >>> solved = caspar.pose_graph.solved_graph(graph, result)
        >>> caspar.io.write_g2o("solved.g2o", solved)
    """
    values = result.values
    poses = np.asarray(values.get("Pose", graph.poses), dtype=np.float64)
    points = np.asarray(values.get("Landmark", graph.landmarks.points), dtype=np.float64)
    return replace(graph, poses=poses, landmarks=replace(graph.landmarks, points=points))


def _terms(graph: PoseGraph) -> dict[str, dict[str, Any]]:
    bearing = _seen(graph.bearings)
    angle = bearing.pop("measured")[:, 0]
    bearing["direction"] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    bearing["sqrt_information"] = bearing["sqrt_information"][:, :, 0]
    priors = {
        "pose_prior": ("pose", graph.pose_priors),
        "position_prior": ("pose", graph.position_priors),
        "landmark_prior": ("landmark", graph.landmark_priors),
    }
    found: dict[str, dict[str, Any]] = {
        "edge": {
            "a": graph.index_a,
            "b": graph.index_b,
            "measured": graph.measurement,
            "sqrt_information": graph.sqrt_information,
        },
        "sensor_edge": {
            "a": graph.sensor_edges.index_a,
            "b": graph.sensor_edges.index_b,
            "offset_a": graph.sensor_edges.offset_a,
            "offset_b": graph.sensor_edges.offset_b,
            "measured": graph.sensor_edges.measurement,
            "sqrt_information": graph.sensor_edges.sqrt_information,
        },
        "sighting": _seen(graph.sightings),
        "bearing": bearing,
        **{
            name: {
                node: prior.index,
                "measured": prior.measurement,
                "sqrt_information": prior.sqrt_information,
            }
            for name, (node, prior) in priors.items()
        },
    }
    found["pose_prior"]["offset"] = graph.pose_priors.offset
    return {
        name: arguments
        for name, arguments in found.items()
        if len(arguments["sqrt_information"]) > 0
    }


def _seen(group: Sightings) -> dict[str, Any]:
    return {
        "pose": group.pose,
        "landmark": group.landmark,
        "offset": group.offset,
        "measured": group.measurement,
        "sqrt_information": group.sqrt_information,
    }


def _fixed(
    graph: PoseGraph, fix_first: bool | None
) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.int64]]:
    fixed = {"Pose": graph.fixed.copy(), "Landmark": graph.landmarks.fixed.copy()}
    if fix_first is False or graph.num_poses == 0:
        return fixed, np.empty(0, np.int64)
    num_parts, part = connected_parts(graph)
    of_landmarks = part[graph.num_poses :]
    is_tied = np.zeros(num_parts, dtype=bool)
    is_tied[part[: graph.num_poses][graph.fixed]] = True
    is_tied[of_landmarks[graph.landmarks.fixed]] = True
    for index in (graph.pose_priors.index, graph.position_priors.index):
        is_tied[part[index]] = True
    is_tied[of_landmarks[graph.landmark_priors.index]] = True
    parts, first = np.unique(part[: graph.num_poses], return_index=True)
    if not fix_first:
        first = first[~is_tied[parts]]
    first = np.sort(first[~graph.fixed[first]])
    fixed["Pose"][first] = True
    return fixed, first


def connected_parts(graph: PoseGraph) -> tuple[int, NDArray[np.int64]]:
    """Find the parts of a graph that measurements connect, and their number.

    Returns the part of each pose, then of each landmark.
    """
    landmarks = [
        group.landmark.astype(np.int64) + graph.num_poses
        for group in (graph.sightings, graph.bearings)
    ]
    edges = graph.sensor_edges
    seen_from = [graph.sightings.pose, graph.bearings.pose]
    starts = np.concatenate([graph.index_a, edges.index_a, *seen_from])
    ends = np.concatenate([graph.index_b, edges.index_b, *landmarks])
    count = graph.num_poses + graph.num_landmarks
    joined = sparse.coo_matrix((np.ones(len(starts)), (starts, ends)), (count, count))
    num_parts, part = connected_components(joined, directed=False)
    return int(num_parts), part.astype(np.int64)
