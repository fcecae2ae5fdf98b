"""The errors of a pose graph in NumPy, as g2o defines them: what the factors compute, and chi2.

Input: a graph. Output: sums of squared whitened errors. Cost: a few passes over the arrays.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.rotations import (
    FloatArray,
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
    transform,
)


def chi2(graph: PoseGraph) -> float:
    """Sum of squared whitened errors at the poses and landmarks of a graph.

    Args:
        graph: As a reader returns it.

    Returns:
        What g2o prints: twice the cost of a solve without loss. Infinity where a number overflows.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> text = '''VERTEX_SE2 0 0 0 0
        ... VERTEX_SE2 1 1.5 0 0
        ... EDGE_SE2 0 1 1.0 0 0 4 0 0 4 0 1'''
        >>> _ = Path("pair.g2o").write_text(text)
        >>> caspar.pose_graph.chi2(caspar.io.read_g2o("pair.g2o"))
        1.0
    """
    return float(sum(chi2_by_kind(graph).values()))


def chi2_by_kind(graph: PoseGraph) -> dict[str, float]:
    """Sums of squared whitened errors, by the factor of `caspar.pose_graph.problem`.

    Args:
        graph: As a reader returns it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = {
            name: float(np.square(np.einsum("nij,nj->ni", roots, errors)).sum())
            for name, (errors, roots) in _errors(graph).items()
        }
    return {name: total if np.isfinite(total) else np.inf for name, total in found.items()}


def _errors(graph: PoseGraph) -> dict[str, tuple[FloatArray, FloatArray]]:
    compose, invert = _compose(graph.kind), _invert(graph.kind)
    poses, points = graph.poses, graph.landmarks.points
    edge = compose(invert(poses[graph.index_a]), poses[graph.index_b])
    found = {"edge": (_difference(graph.measurement, edge), graph.sqrt_information)}
    between = graph.sensor_edges
    sensors = (
        compose(poses[between.index_a], between.offset_a),
        compose(poses[between.index_b], between.offset_b),
    )
    motion = compose(invert(sensors[0]), sensors[1])
    found["sensor_edge"] = (_difference(between.measurement, motion), between.sqrt_information)
    seen = graph.sightings
    local = _seen(graph, seen.pose, seen.offset, seen.landmark)
    found["sighting"] = (local - seen.measurement, seen.sqrt_information)
    seen = graph.bearings
    if len(seen.pose) > 0:
        local = _seen(graph, seen.pose, seen.offset, seen.landmark)
        angle = np.arctan2(local[:, 1], local[:, 0]) - seen.measurement[:, 0]
        wrapped = np.arctan2(np.sin(angle), np.cos(angle))[:, None]
        found["bearing"] = (wrapped, seen.sqrt_information)
    prior = graph.pose_priors
    sensor = compose(poses[prior.index], prior.offset)
    found["pose_prior"] = (_difference(prior.measurement, sensor), prior.sqrt_information)
    prior = graph.position_priors
    place = poses[prior.index, -graph.kind.dim :]
    found["position_prior"] = (place - prior.measurement, prior.sqrt_information)
    prior = graph.landmark_priors
    found["landmark_prior"] = (points[prior.index] - prior.measurement, prior.sqrt_information)
    return {name: pair for name, pair in found.items() if len(pair[0]) > 0 or name == "edge"}


def _seen(
    graph: PoseGraph, pose: NDArray[np.int32], offset: FloatArray, landmark: NDArray[np.int32]
) -> FloatArray:
    sensor = _compose(graph.kind)(graph.poses[pose], offset)
    return transform(_invert(graph.kind)(sensor), graph.landmarks.points[landmark])


def _difference(measured: FloatArray, found: FloatArray) -> FloatArray:
    """Translation, then rotation, of inverse(measured) * found."""
    if found.shape[1] == PoseGraphKind.SE2.storage_dim:
        delta = compose_se2(invert_se2(measured), found)
        return np.column_stack([delta[:, 2:], np.arctan2(delta[:, 1], delta[:, 0])])
    delta = compose_se3(invert_se3(measured), found)
    sign = np.where(delta[:, 3:4] < 0.0, -1.0, 1.0)
    return np.concatenate([delta[:, 4:], sign * delta[:, :3]], axis=1)


def _compose(kind: PoseGraphKind) -> Callable[[FloatArray, FloatArray], FloatArray]:
    return compose_se2 if kind is PoseGraphKind.SE2 else compose_se3


def _invert(kind: PoseGraphKind) -> Callable[[FloatArray], FloatArray]:
    return invert_se2 if kind is PoseGraphKind.SE2 else invert_se3
