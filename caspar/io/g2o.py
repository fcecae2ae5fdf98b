"""Read and write pose graphs in the text format of g2o.

Input: a text file, plain or packed, of SE2 or SE3 poses. Output: `PoseGraph`, arrays in caspar's
(SymForce's) storage order; and back. Cost: once per problem, some microseconds a line.

Lines that are read (Kuemmerle, Grisetti, Strasdat, Konolige, Burgard, *g2o: A General Framework
for Graph Optimization*, ICRA 2011)::

    VERTEX_SE2 id x y angle
    VERTEX_SE3:QUAT id x y z qx qy qz qw
    EDGE_SE2 id_a id_b x y angle information
    EDGE_SE3:QUAT id_a id_b x y z qx qy qz qw information
    FIX id ...

A vertex is world_T_pose; an edge measures a_T_b = inverse(world_T_a) * world_T_b. `information`
is the upper triangle, row by row, of the inverse covariance of the edge's error. Empty lines,
lines that begin with ``#``, and ``PARAMS_...`` lines (which serve other edges) are passed over.

**Order of rows and columns.** The information, and so its square root, is in g2o's order:
*translation first, then rotation*. With ``delta = inverse(measurement) * inverse(a) * b``, the
whitened residual of an edge is ``sqrt_information @ error``, where ``error`` is

* SE3: ``[delta.t.x, delta.t.y, delta.t.z, delta.q.x, delta.q.y, delta.q.z]`` with ``delta.q.w``
  made non-negative: the quaternion's vector part, for small errors *half* the rotation vector;
* SE2: ``[delta.t.x, delta.t.y, angle of delta]``, the angle from -pi to pi.

g2o prints chi2, the sum of squares of these; caspar's cost is half of it. SymForce's tangent
space has the rotation first: a residual that lists the rotation first takes
``sqrt_information[:, :, [3, 4, 5, 0, 1, 2]]`` (SE3) or ``sqrt_information[:, :, [2, 0, 1]]``
(SE2), a square root of the same information, though no longer triangular. If it has the rotation
vector instead of the quaternion's vector part, halve the three rotation columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError, OptionError
from caspar.io.compressed import FilePath, open_for_reading, path_text
from caspar.io.g2o_lines import G2oRecords, Records, read_records
from caspar.io.information import information_roots
from caspar.io.pose_chain import NO_PARENT, poses_along_tree, spanning_tree
from caspar.io.pose_graph_kind import PoseGraphKind
from caspar.io.replace import open_for_packing
from caspar.io.rigid_motions import (
    SE2_IDENTITY,
    SE3_IDENTITY,
    compose_se2,
    compose_se3,
    invert_se2,
    invert_se3,
)
from caspar.io.rotations import FloatArray
from caspar.user_warnings import warn_user

# A quaternion written with few digits is of length one to this; one whose numbers are in another
# order, or no quaternion at all, mostly is not.
_LENGTH_TOLERANCE = 1e-2

Indefinite = Literal["error", "clip"]
"""What `read_g2o` does with information that is not positive semidefinite."""

UnknownLines = Literal["error", "skip"]
"""What `read_g2o` does with lines of a kind that it does not read."""

_LINES_PER_WRITE = 1 << 13


@dataclass(frozen=True, eq=False, repr=False)
class PoseGraph:
    """Poses, and measurements between pairs of them.

    In space (SE3) storage_dim is 7 and tangent_dim 6, in the plane (SE2) they are 4 and 3. Poses
    and measurements are stored as SymForce does: ``Pose3`` qx qy qz qw tx ty tz (unit
    quaternion), ``Pose2`` cos sin x y.

    Attributes:
        kind: SE2 or SE3.
        ids: (num_poses,) int64, the vertex number that the file gives each pose.
        poses: (num_poses, storage_dim) float64, world_T_pose, the start of the optimisation.
        fixed: (num_poses,) bool, True where a FIX line names the pose. Often none is: then the
            position of the whole graph is free.
        index_a: (num_edges,) int32, the row of `poses` where each edge begins.
        index_b: (num_edges,) int32, the row of `poses` where each edge ends.
        measurement: (num_edges, storage_dim) float64, measured a_T_b.
        sqrt_information: (num_edges, tangent_dim, tangent_dim) float64, upper triangular W with
            transpose(W) @ W = information; translation first, as the module's text explains.
        poses_from_edges: True if the file has no vertices and `poses` were chained along edges.
        skipped: how many lines of each unknown kind were passed over, by their tag.
    """

    kind: PoseGraphKind
    ids: NDArray[np.int64]
    poses: NDArray[np.float64]
    fixed: NDArray[np.bool_]
    index_a: NDArray[np.int32]
    index_b: NDArray[np.int32]
    measurement: NDArray[np.float64]
    sqrt_information: NDArray[np.float64]
    poses_from_edges: bool
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_poses(self) -> int:
        """Number of poses."""
        return int(self.poses.shape[0])

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self.measurement.shape[0])

    def __repr__(self) -> str:
        """Return kind and sizes; the arrays are too large to be shown."""
        return f"PoseGraph({self.kind.name}, {self.num_poses} poses, {self.num_edges} edges)"


def read_g2o(
    path: FilePath, *, indefinite: Indefinite = "error", unknown: UnknownLines = "error"
) -> PoseGraph:
    """Read a pose graph from a g2o text file.

    If the file has edges but no vertices, poses are chained along edges from the lowest id, which
    is put at the origin, to each of the others by as few edges as possible.

    An information matrix is judged by itself, scaled to unit diagonal, so units do not matter. An
    eigenvalue of the scaled matrix counts as zero down to -1e-6 of the largest one.

    Args:
        path: the file; plain, bzip2 or gzip. It is read once from beginning to end: a FIFO or
            /dev/stdin will do.
        indefinite: what is done with an information matrix that is not positive semidefinite.
            `"error"`: it is refused. `"clip"`: negative eigenvalues of the scaled matrix are set
            to zero, and so are rows and columns whose diagonal entry is not positive. Some public
            files need that; it changes the measurements that it concerns.
        unknown: what is done with lines of kinds that are not read, such as landmarks and priors.
            `"error"`: the file is refused. `"skip"`: they are passed over, counted in
            `PoseGraph.skipped`, and a warning names them.

    Returns:
        The graph: poses in the order of the file (chained ones in the order of their ids), edges
        in the order of the file, quaternions scaled to unit length.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format, holds kinds of lines that are not
            read, SE2 and SE3 at once, no poses at all, or an information matrix that is not
            positive semidefinite; the message gives the line.
        OptionError: `indefinite` or `unknown` is something else, or `path` is no path.
    """
    _check_choice("indefinite", indefinite, get_args(Indefinite))
    _check_choice("unknown", unknown, get_args(UnknownLines))
    path = path_text(path)
    with open_for_reading(path) as stream:
        records = read_records(stream, path, skips_unknown=unknown == "skip")
    _warn_of_skipped(records.skipped, path)
    return _graph(records, indefinite, path)


def _graph(records: G2oRecords, indefinite: Indefinite, path: str) -> PoseGraph:
    kind, vertices, edges = records.kind, records.vertices, records.edges
    pose_dim = kind.num_numbers

    poses_from_edges = len(vertices.ids) == 0
    ids = np.unique(edges.ids) if poses_from_edges else vertices.ids[:, 0]
    index_from_id = _index_from_id(ids, vertices, path)
    ends = _edge_ends(edges, index_from_id, path)
    measurement = _stored_poses(kind, edges.values[:, :pose_dim], edges, path)
    if poses_from_edges:
        poses = _chained_poses(kind, measurement, ends, ids, path)
    else:
        poses = _stored_poses(kind, vertices.values, vertices, path)
    roots, faults = information_roots(_information(kind, edges.values[:, pose_dim:]))
    if len(faults) > 0 and indefinite == "error":
        raise _indefinite_error(faults, edges, path)
    return PoseGraph(
        kind=kind,
        ids=ids,
        poses=poses,
        fixed=_fixed_mask(records.fixes, index_from_id, path),
        index_a=ends[:, 0].copy(),
        index_b=ends[:, 1].copy(),
        measurement=measurement,
        sqrt_information=roots,
        poses_from_edges=poses_from_edges,
        skipped=records.skipped,
    )


def _check_choice(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise OptionError(f"{name}={given!r}: it must be {' or '.join(map(repr, allowed))}")


def _warn_of_skipped(skipped: Mapping[str, int], path: str) -> None:
    if skipped:
        kinds = ", ".join(f"{count:,} {tag}" for tag, count in skipped.items())
        warn_user(f"{path}: lines of kinds that are not read were passed over: {kinds}")


def write_g2o(path: FilePath, graph: PoseGraph) -> None:
    """Write a pose graph as a g2o text file, so that `read_g2o` gives it back.

    Numbers are written with all the digits that float64 has. Angles, quaternions and roots of
    information come back to rounding, everything else as it is.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        graph: what to write.

    Raises:
        ValueError: the graph holds a number that is not finite, or an index out of range, or `path`
            is no path; nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.
    """
    path = path_text(path)
    _check_writable(graph)
    vertices = _written_poses(graph.kind, graph.poses)
    edges = _written_poses(graph.kind, graph.measurement)
    roots = graph.sqrt_information
    rows, columns = np.triu_indices(graph.kind.tangent_dim)
    tag = graph.kind.value
    ids = graph.ids[:, None]
    ends = graph.ids[np.stack([graph.index_a, graph.index_b], axis=1)]
    with open_for_packing(path) as stream:
        for text in _lines(f"VERTEX_{tag}", ids, vertices):
            stream.write(text)
        stream.write("".join(f"FIX {name}\n" for name in graph.ids[graph.fixed].tolist()).encode())
        for start in range(0, len(edges), _LINES_PER_WRITE):
            part = slice(start, start + _LINES_PER_WRITE)
            information = np.swapaxes(roots[part], 1, 2) @ roots[part]
            numbers = np.concatenate([edges[part], information[:, rows, columns]], axis=1)
            for text in _lines(f"EDGE_{tag}", ends[part], numbers):
                stream.write(text)


def _lines(tag: str, ids: NDArray[np.int64], numbers: FloatArray) -> Iterator[bytes]:
    """Format lines of a tag, ids and numbers, some thousand at a time."""
    for start in range(0, len(ids), _LINES_PER_WRITE):
        part = slice(start, start + _LINES_PER_WRITE)
        rows = zip(ids[part].tolist(), numbers[part].tolist(), strict=True)
        lines = (f"{tag} {' '.join(map(repr, [*names, *row]))}\n" for names, row in rows)
        yield "".join(lines).encode()


def _written_poses(kind: PoseGraphKind, poses: FloatArray) -> FloatArray:
    """Bring poses from storage order into that of the file."""
    if kind is PoseGraphKind.SE2:
        angle = np.arctan2(poses[:, 1], poses[:, 0])
        return np.column_stack([poses[:, 2:], angle])
    return np.concatenate([poses[:, 4:], poses[:, :4]], axis=1)


def _check_writable(graph: PoseGraph) -> None:
    """Refuse what `read_g2o` would refuse to read back."""
    for name in ("poses", "measurement", "sqrt_information"):
        array: FloatArray = getattr(graph, name)
        is_finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if not is_finite.all():
            raise ValueError(f"PoseGraph.{name}[{int(np.argmin(is_finite))}] is not finite")
    for name in ("index_a", "index_b"):
        indices: NDArray[np.int32] = getattr(graph, name)
        is_good = (indices >= 0) & (indices < graph.num_poses)
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise ValueError(
                f"PoseGraph.{name}[{row}] is {indices[row]}; it must be 0 to {graph.num_poses - 1}"
            )


def _index_from_id(ids: NDArray[np.int64], vertices: Records, path: str) -> dict[int, int]:
    """Map vertex ids to rows, refusing an id that is declared twice."""
    index_from_id: dict[int, int] = {}
    for index, name in enumerate(ids.tolist()):
        first = index_from_id.setdefault(name, index)
        if first != index:
            raise FileFormatError(
                f"{path}, line {vertices.line_numbers[index]}: vertex {name} was "
                f"declared before, in line {vertices.line_numbers[first]}"
            )
    return index_from_id


def _edge_ends(edges: Records, index_from_id: dict[int, int], path: str) -> NDArray[np.int32]:
    """Return (num_edges, 2) rows of the poses that each edge joins."""
    ends = np.empty(edges.ids.shape, dtype=np.int32)
    for row, (names, line_number) in enumerate(
        zip(edges.ids.tolist(), edges.line_numbers, strict=True)
    ):
        for column, name in enumerate(names):
            if name not in index_from_id:
                raise FileFormatError(
                    f"{path}, line {line_number}: the edge names vertex {name}, which "
                    "the file does not declare; it must declare all vertices or none"
                )
            ends[row, column] = index_from_id[name]
        if names[0] == names[1]:
            raise FileFormatError(
                f"{path}, line {line_number}: the edge joins vertex {names[0]} with "
                "itself; an edge must join two vertices"
            )
    return ends


def _stored_poses(
    kind: PoseGraphKind, written: FloatArray, records: Records, path: str
) -> FloatArray:
    """Bring poses as written in the file into storage order."""
    if kind is PoseGraphKind.SE2:
        angle = written[:, 2]
        return np.stack([np.cos(angle), np.sin(angle), written[:, 0], written[:, 1]], axis=1)
    quaternion = written[:, 3:]
    with np.errstate(over="ignore"):  # a length of infinity is refused below
        length = np.linalg.norm(quaternion, axis=1)
    is_unit = np.abs(length - 1.0) <= _LENGTH_TOLERANCE
    if not is_unit.all():
        row = int(np.argmin(is_unit))
        raise FileFormatError(
            f"{path}, line {records.line_numbers[row]}: the quaternion (qx qy qz qw) "
            f"has length {length[row]:.6g}; it must be 1 to {_LENGTH_TOLERANCE:g}"
        )
    return np.concatenate([quaternion / length[:, None], written[:, :3]], axis=1)


def _chained_poses(
    kind: PoseGraphKind,
    measurement: FloatArray,
    ends: NDArray[np.int32],
    ids: NDArray[np.int64],
    path: str,
) -> FloatArray:
    """Return poses that agree with a spanning tree of edges, for a file without vertices."""
    if kind is PoseGraphKind.SE2:
        identity, compose, invert = SE2_IDENTITY, compose_se2, invert_se2
    else:
        identity, compose, invert = SE3_IDENTITY, compose_se3, invert_se3
    parents, tree_edges = spanning_tree(ends, len(ids))
    is_unreached = parents == NO_PARENT
    is_unreached[0] = False
    if is_unreached.any():
        raise FileFormatError(
            f"{path}: the file declares no vertices, and its edges do not connect "
            f"vertex {ids[np.argmax(is_unreached)]} with vertex {ids[0]}, so that its pose is "
            "not known; add VERTEX lines"
        )
    is_forward = ends[tree_edges, 0] == parents
    steps = measurement[tree_edges]
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        pose_from_parent = np.where(is_forward[:, None], steps, invert(steps))
        poses = poses_along_tree(parents, pose_from_parent, identity, compose)
    is_finite = np.isfinite(poses).all(axis=1)
    if not is_finite.all():
        raise FileFormatError(
            f"{path}: the file declares no vertices, and the pose of vertex "
            f"{ids[np.argmin(is_finite)]}, composed along edges from vertex {ids[0]}, is too large "
            "for float64; add VERTEX lines or mend the measurements"
        )
    return poses


def _fixed_mask(
    fixes: dict[int, int], index_from_id: dict[int, int], path: str
) -> NDArray[np.bool_]:
    """Return (num_poses,) True for the poses that FIX lines name."""
    fixed = np.zeros(len(index_from_id), dtype=np.bool_)
    for name, line_number in fixes.items():
        if name not in index_from_id:
            raise FileFormatError(
                f"{path}, line {line_number}: FIX names vertex {name}, which the file does not have"
            )
        fixed[index_from_id[name]] = True
    return fixed


def _information(kind: PoseGraphKind, triangle: FloatArray) -> FloatArray:
    """Return (num_edges, tangent_dim, tangent_dim) matrices from their upper triangles."""
    dim = kind.tangent_dim
    information = np.empty((len(triangle), dim, dim))
    rows, columns = np.triu_indices(dim)
    information[:, rows, columns] = triangle
    information[:, columns, rows] = triangle
    return information


def _indefinite_error(faults: dict[int, str], edges: Records, path: str) -> FileFormatError:
    """Say what is wrong with the first matrix that is not positive semidefinite."""
    row, fault = next(iter(faults.items()))
    others = "" if len(faults) == 1 else f" ({len(faults) - 1:,} more have such a fault)"
    return FileFormatError(
        f"{path}, line {edges.line_numbers[row]}: the information matrix {fault}; "
        f"it must be positive semidefinite{others}. read_g2o(..., indefinite='clip') reads the "
        "file nevertheless: it sets negative eigenvalues of the matrix scaled to unit diagonal "
        "to 0, and rows and columns whose diagonal entry is not positive too"
    )
