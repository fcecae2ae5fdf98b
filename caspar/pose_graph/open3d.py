"""Open3D's pose graphs, optimised by caspar in place of Open3D's `global_optimization`.

Input: an `open3d.pipelines.registration.PoseGraph`, which is changed in place. Output: what was
done to it. Cost: a pass over nodes and edges in Python, then one or two solves. open3d is not
imported: whoever has such a graph has it.

An edge has the error of `caspar.factors.between` from target to source. Of an uncertain edge with
the squared error s, Choi, Zhou and Koltun (Robust Reconstruction of Indoor Scenes, CVPR 2015)
minimise c s + mu (sqrt(c) - 1)^2 over the poses and the confidence c. The best c is
(mu / (mu + s))^2. With it the term is s / (1 + s / mu): Geman-McClure of the scale sqrt(mu), and
its weight is the confidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation

from caspar.errors import InputError, OptionError
from caspar.factors.poses import between
from caspar.io.graphs.information import information_roots
from caspar.loss import GemanMcClure
from caspar.options import BackendChoice, BackendName, PrecisionName
from caspar.pose_graph.factors import Space
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver

_CERTAIN = between(Space.Pose, noise="sqrt_information", name="certain")
_UNCERTAIN = between(Space.Pose, noise="sqrt_information", name="uncertain").with_loss(GemanMcClure)


@dataclass(frozen=True, eq=False)
class Open3DResult:
    """The result of `optimize_open3d` for a graph of n edges.

    Attributes:
        results: The solve of all edges and, if it pruned some, the solve of the others.
        confidence: (n,) of each edge when it was last part of a solve, 1 for certain edges.
        pruned: (k,) places of the edges that were removed, among the n.
    """

    results: tuple[SolveResult, ...]
    confidence: NDArray[np.float64]
    pruned: NDArray[np.int64]


def optimize_open3d(
    pose_graph: Any,
    option: Any,
    *,
    backend: BackendName | BackendChoice = "auto",
    precision: PrecisionName = "float64",
    **options: Any,
) -> Open3DResult:
    """Optimise a pose graph of Open3D in place, as its `global_optimization` with the LM method.

    Uncertain edges whose confidence is at most `option.edge_prune_threshold` are removed after a
    first solve, and once more after a second solve of the edges that remain. The graph is changed
    after both: if an error is raised, it is as it was.

    `option.reference_node` keeps its pose. If it is -1 the first node does, while in Open3D the
    graph moves as a whole. An error of rotation is the rotation vector, of which Open3D has the
    sine: small errors agree, but half a turn is a large error here, and none in Open3D.

    Args:
        pose_graph: An `open3d.pipelines.registration.PoseGraph`: nodes with world_T_node, edges
            with target_T_source (4, 4) and information (6, 6): rotation (rad), then translation.
        option: An `open3d.pipelines.registration.GlobalOptimizationOption`.
        backend: As of `caspar.Solver`.
        precision: As of `caspar.Solver`.
        options: As of `caspar.Solver.solve`, in place of Open3D's convergence criteria.

    Raises:
        InputError: A node or an edge is wrong, or edges do not connect all nodes.
        OptionError: A value of `option` is outside its range.
    """
    poses = _poses([node.pose for node in pose_graph.nodes], "nodes[{}].pose")
    reference = _reference(option, len(poses))
    terms, is_uncertain = _terms(list(pose_graph.edges), len(poses))
    kept = np.arange(len(is_uncertain))
    held = _one_of_each_part(terms, len(poses), reference)
    if len(held) > 1:
        apart = f"nodes[{held[held != reference][0]}] with nodes[{reference}]"
        raise InputError(f"edges do not connect {apart}: optimise each part as a graph")
    solver = Solver([_CERTAIN, _UNCERTAIN], backend=backend, precision=precision)
    confidence = np.ones(len(kept))
    results: list[SolveResult] = []
    while len(results) < 2 and len(kept) > 0:
        held = _one_of_each_part(_rows(terms, kept), len(poses), reference)
        certain, uncertain = kept[~is_uncertain[kept]], kept[is_uncertain[kept]]
        # information[5, 5] is the number of correspondences of an edge
        mean = np.square(terms["sqrt_information"][kept, :, 5]).sum() / len(kept)
        if mean == 0.0:
            raise InputError("edges: information[5, 5], correspondences, must not be 0 everywhere")
        scale = option.max_correspondence_distance * np.sqrt(option.preference_loop_closure * mean)
        arrays = {
            "Pose": poses,
            "certain": _rows(terms, certain),
            "uncertain": {**_rows(terms, uncertain), "loss_scale": scale},
        }
        results.append(solver.solve(arrays, fixed={"Pose": held}, **options))
        poses = np.asarray(results[-1].values["Pose"], np.float64)
        confidence[uncertain] = results[-1].weights("uncertain")
        pruned = uncertain[confidence[uncertain] <= option.edge_prune_threshold]
        kept = np.setdiff1d(kept, pruned)
        if len(pruned) == 0:
            break
    _write(pose_graph, poses, reference, confidence, kept)
    return Open3DResult(tuple(results), confidence, np.setdiff1d(range(len(confidence)), kept))


def _rows(terms: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[str, Any]:
    return {name: array[rows] for name, array in terms.items()}


def _one_of_each_part(terms: Mapping[str, Any], num: int, reference: int) -> NDArray[Any]:
    """A node of each part that edges connect: the reference of its own, of others the first."""
    ends = (np.ones(len(terms["a"])), (terms["a"], terms["b"]))
    _, part = connected_components(sparse.coo_matrix(ends, (num, num)), directed=False)
    _, nodes = np.unique(part, return_index=True)
    nodes[part[reference]] = reference
    return nodes


def _write(graph: Any, poses: Any, reference: int, confidence: Any, kept: Any) -> None:
    matrices = np.tile(np.eye(4), (len(poses), 1, 1))
    matrices[:, :3, :3] = Rotation.from_quat(poses[:, :4]).as_matrix()
    matrices[:, :3, 3] = poses[:, 4:]
    for number, node in enumerate(graph.nodes):
        if number != reference:
            node.pose = matrices[number]
    for place in kept.tolist():
        graph.edges[place].confidence = float(confidence[place])
    graph.edges = type(graph.edges)([graph.edges[place] for place in kept.tolist()])


def _reference(option: Any, num: int) -> int:
    """The node that keeps its pose, if all values of the option are in their ranges."""
    positive = (np.finfo(np.float64).tiny, np.finfo(np.float64).max, "positive")
    for name, lowest, highest, allowed in (
        ("max_correspondence_distance", *positive),
        ("edge_prune_threshold", 0.0, 1.0, "from 0 to 1"),
        ("preference_loop_closure", *positive),
        ("reference_node", -1, num - 1, f"-1 or a node from 0 to {num - 1}"),
    ):
        value = getattr(option, name, None)
        if value is None or not lowest <= value <= highest:
            raise OptionError(f"option.{name}={value!r}: it must be {allowed}")
    return max(int(option.reference_node), 0)


def _terms(edges: list[Any], num: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    for place, edge in enumerate(edges):
        start, end = edge.source_node_id, edge.target_node_id
        if not (0 <= start < num and 0 <= end < num and start != end):
            wanted = f"they must be two of 0 to {num - 1}"
            raise InputError(f"edges[{place}] joins the nodes {start} and {end}: {wanted}")
        if not edge.uncertain and edge.confidence != 1.0:
            raise InputError(f"edges[{place}].confidence: must be 1, since the edge is certain")
    information = _matrices([edge.information for edge in edges], "edges[{}].information", 6)
    roots, faults = information_roots(0.5 * (information + information.transpose(0, 2, 1)))
    for place, fault in faults.items():
        raise InputError(f"edges[{place}].information {fault}; it must be positive semidefinite")
    terms = {
        "a": np.array([edge.target_node_id for edge in edges]),
        "b": np.array([edge.source_node_id for edge in edges]),
        "a_from_b": _poses([edge.transformation for edge in edges], "edges[{}].transformation"),
        "sqrt_information": roots,
    }
    return terms, np.array([edge.uncertain for edge in edges], np.bool_)


def _poses(given: Sequence[Any], name: str) -> NDArray[np.float64]:
    """(n, 7) qx qy qz qw tx ty tz of rigid motions (4, 4)."""
    found = _matrices(given, name, 4)
    turns = np.where(np.arange(4) < 3, found, np.eye(4))  # without the translation
    error = np.abs(turns.transpose(0, 2, 1) @ turns - np.eye(4)).max(axis=(1, 2))
    is_bad = (error > 1e-4) | (np.linalg.det(turns) < 0.0) | (found[:, 3, 3] != 1.0)
    for place in np.flatnonzero(is_bad):  # single precision has errors of 1e-6
        raise InputError(f"{name.format(place)} is no rotation and translation above 0 0 0 1")
    turn = Rotation.from_matrix(turns[:, :3, :3]).as_quat()
    return np.concatenate([turn, found[:, :3, 3]], axis=1)


def _matrices(given: Sequence[Any], name: str, size: int) -> NDArray[np.float64]:
    if len(given) == 0:
        raise InputError(f"pose_graph has no {name.partition('[')[0]}: nothing can be optimised")
    arrays = [np.asarray(one, np.float64) for one in given]
    for place, one in enumerate(arrays):
        if one.shape != (size, size) or not np.isfinite(one).all():
            wanted = f"it must be a finite matrix of shape ({size}, {size})"
            raise InputError(f"{name.format(place)} has shape {one.shape}: {wanted}")
    return np.stack(arrays)
