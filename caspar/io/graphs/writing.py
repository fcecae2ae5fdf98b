"""Check pose graphs and format their lines, some thousand at a time, for all writers."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from caspar.io.graphs.lines import LARGEST_ID
from caspar.io.graphs.pose_graph import Landmarks, PoseGraph, Priors, SensorEdges, Sightings
from caspar.io.rotations import FloatArray

_LINES_PER_WRITE = 1 << 13


def formatted(
    tag: str, ids: NDArray[np.int64], numbers: FloatArray, more_numbers: FloatArray | None = None
) -> Iterator[bytes]:
    """Format lines of a tag, (n, i) ids and (n, k) numbers, and more, some thousand at a time."""
    if more_numbers is not None:
        numbers = np.concatenate([numbers, more_numbers], axis=1)
    for start in range(0, len(ids), _LINES_PER_WRITE):
        part = slice(start, start + _LINES_PER_WRITE)
        rows = zip(ids[part].tolist(), numbers[part].tolist(), strict=True)
        lines = (f"{tag} {' '.join(map(repr, [*names, *row]))}\n" for names, row in rows)
        yield "".join(lines).encode()


def triangles(roots: FloatArray) -> FloatArray:
    """Upper triangles, row by row, of the information that (n, d, d) roots are of."""
    rows, columns = np.triu_indices(roots.shape[1])
    information: FloatArray = (np.swapaxes(roots, 1, 2) @ roots)[:, rows, columns]
    return information


def check_writable(graph: PoseGraph) -> None:
    """Refuse what readers would refuse to read back.

    Raises a `ValueError` if a number is not finite, an index is out of range, or an id is none.
    """
    for name, ids in (("ids", graph.ids), ("landmarks.ids", graph.landmarks.ids)):
        _check_ids(f"PoseGraph.{name}", ids)
    parts: dict[str, PoseGraph | Landmarks | SensorEdges | Sightings | Priors] = {
        "": graph,
        "landmarks.": graph.landmarks,
        "sensor_edges.": graph.sensor_edges,
        "sightings.": graph.sightings,
        "bearings.": graph.bearings,
        "pose_priors.": graph.pose_priors,
        "position_priors.": graph.position_priors,
        "landmark_priors.": graph.landmark_priors,
    }
    for prefix, part in parts.items():
        limits = {"index_a": graph.num_poses, "index_b": graph.num_poses}
        if isinstance(part, Sightings):
            limits = {"pose": graph.num_poses, "landmark": graph.num_landmarks}
        if isinstance(part, Priors):
            is_pose = part is not graph.landmark_priors
            limits = {"index": graph.num_poses if is_pose else graph.num_landmarks}
        for field in fields(part):
            array = getattr(part, field.name)
            name = f"PoseGraph.{prefix}{field.name}"
            if field.name in limits:
                _check_indices(name, array, limits[field.name])
            elif isinstance(array, np.ndarray) and array.dtype == np.float64:
                _check_finite(name, array)


def _check_ids(name: str, ids: NDArray[np.int64]) -> None:
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {ids.dtype}; it must be of integers")
    is_good = (ids >= 0) & (ids <= LARGEST_ID)
    if not is_good.all():
        row = int(np.argmin(is_good))
        raise ValueError(f"{name}[{row}] is {ids[row]}; it must be 0 to 2^63 - 1")
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise ValueError(f"{name}: {unique[np.argmax(counts)]} is there twice")


def _check_finite(name: str, array: FloatArray) -> None:
    is_finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if not is_finite.all():
        raise ValueError(f"{name}[{int(np.argmin(is_finite))}] is not finite")


def _check_indices(name: str, indices: NDArray[np.int32], count: int) -> None:
    is_good = (indices >= 0) & (indices < count)
    if not is_good.all():
        row = int(np.argmin(is_good))
        raise ValueError(f"{name}[{row}] is {indices[row]}; it must be 0 to {count - 1}")
