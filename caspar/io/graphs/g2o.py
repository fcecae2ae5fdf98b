"""Read and write pose graphs in the text format of g2o.

Input: a text file, plain or packed, of SE2 or SE3 poses. Output: `PoseGraph`, arrays in caspar's
(SymForce's) storage order; and back. Cost: once per problem, some microseconds a line.

Lines that are read (Kuemmerle, Grisetti, Strasdat, Konolige, Burgard, *g2o: A General Framework
for Graph Optimization*, ICRA 2011, and its types `slam2d` and `slam3d`)::

    VERTEX_SE2 id x y angle
    VERTEX_SE3:QUAT id x y z qx qy qz qw
    VERTEX_XY id x y                            landmarks
    VERTEX_TRACKXYZ id x y z                    or VERTEX_XYZ
    EDGE_SE2 id_a id_b x y angle information
    EDGE_SE3:QUAT id_a id_b x y z qx qy qz qw information
    EDGE_SE2_OFFSET id_a id_b offset_a offset_b x y angle information
    EDGE_SE3_OFFSET id_a id_b offset_a offset_b x y z qx qy qz qw information
    EDGE_SE2_XY pose landmark x y information
    EDGE_SE2_POINTXY_OFFSET pose landmark offset x y information
    EDGE_BEARING_SE2_XY pose landmark angle information
    EDGE_SE3_TRACKXYZ pose landmark offset x y z information
    EDGE_SE3_XYZ pose landmark x y z information
    EDGE_PRIOR_SE2 pose x y angle information
    EDGE_SE3_PRIOR pose offset x y z qx qy qz qw information
    EDGE_PRIOR_SE3 pose x y z qx qy qz qw information
    EDGE_PRIOR_SE2_XY pose x y information
    EDGE_SE3_XYZ_PRIOR pose offset x y z information
    EDGE_PRIOR_XY landmark x y information
    EDGE_POINTXYZ_PRIOR landmark x y z information
    PARAMS_SE2OFFSET offset x y angle           pose_T_sensor
    PARAMS_SE3OFFSET offset x y z qx qy qz qw
    FIX id ...

A vertex is world_T_pose; an edge measures a_T_b = inverse(world_T_a) * world_T_b, that of two
offsets the motion between sensors, inverse(world_T_a * offset_a) * world_T_b * offset_b.
`information` is the upper triangle, row by row, of the inverse covariance of the error, translation
first: the order of `PoseGraph`. A line that should name one offset, but has one entry less, has
none: many programs write such lines. EDGE_SE3_XYZ_PRIOR compares the position of the pose, as g2o
does; its offset is not used. Empty lines, lines that begin with ``#``, and other ``PARAMS_...``
lines (which serve other edges) are passed over.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from caspar.io.compressed import FilePath, path_text
from caspar.io.graphs.assemble import Indefinite, UnknownLines, read_graph
from caspar.io.graphs.information import information_from_toro
from caspar.io.graphs.lines import LineKind, OtherOrder, Section
from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.graphs.writing import check_writable, formatted, triangles
from caspar.io.replace import open_for_packing
from caspar.io.rotations import FloatArray


def storage_from_angle(written: FloatArray) -> FloatArray:
    """Poses in storage order, cos sin x y, from (n, 3) x y angle."""
    angle = written[:, 2]
    return np.stack([np.cos(angle), np.sin(angle), written[:, 0], written[:, 1]], axis=1)


def angle_from_storage(poses: FloatArray) -> FloatArray:
    """(n, 3) x y angle from poses in storage order."""
    return np.column_stack([poses[:, 2:], np.arctan2(poses[:, 1], poses[:, 0])])


_PLANE, _SPACE = PoseGraphKind.SE2, PoseGraphKind.SE3

TAGS: Mapping[bytes, LineKind] = {
    b"VERTEX_SE2": LineKind(Section.POSES, _PLANE, 3, stored=storage_from_angle),
    b"VERTEX_SE3:QUAT": LineKind(Section.POSES, _SPACE, 7),
    b"EDGE_SE2": LineKind(
        Section.EDGES,
        _PLANE,
        3,
        3,
        stored=storage_from_angle,
        other_order=OtherOrder(
            information_from_toro,
            "In TORO's order, ff fs ss rr fr sr, all matrices of these lines are. If the file was "
            "made of one of TORO's, rename VERTEX_SE2 to VERTEX2 and EDGE_SE2 to EDGE2",
        ),
    ),
    b"EDGE_SE3:QUAT": LineKind(Section.EDGES, _SPACE, 7, 6),
    b"EDGE_SE2_OFFSET": LineKind(
        Section.SENSOR_EDGES, _PLANE, 3, 3, num_offsets=2, stored=storage_from_angle
    ),
    b"EDGE_SE3_OFFSET": LineKind(Section.SENSOR_EDGES, _SPACE, 7, 6, num_offsets=2),
    b"VERTEX_XY": LineKind(Section.LANDMARKS, _PLANE, 2),
    b"VERTEX_TRACKXYZ": LineKind(Section.LANDMARKS, _SPACE, 3),
    b"VERTEX_XYZ": LineKind(Section.LANDMARKS, _SPACE, 3),
    b"EDGE_SE2_XY": LineKind(Section.SIGHTINGS, _PLANE, 2, 2),
    b"EDGE_SE2_POINTXY_OFFSET": LineKind(Section.SIGHTINGS, _PLANE, 2, 2, num_offsets=1),
    b"EDGE_BEARING_SE2_XY": LineKind(Section.BEARINGS, _PLANE, 1, 1),
    b"EDGE_SE3_TRACKXYZ": LineKind(Section.SIGHTINGS, _SPACE, 3, 3, num_offsets=1),
    b"EDGE_SE3_XYZ": LineKind(Section.SIGHTINGS, _SPACE, 3, 3),
    b"EDGE_PRIOR_SE2": LineKind(Section.POSE_PRIORS, _PLANE, 3, 3, stored=storage_from_angle),
    b"EDGE_SE3_PRIOR": LineKind(Section.POSE_PRIORS, _SPACE, 7, 6, num_offsets=1),
    b"EDGE_PRIOR_SE3": LineKind(Section.POSE_PRIORS, _SPACE, 7, 6),
    b"EDGE_PRIOR_SE2_XY": LineKind(Section.POSITION_PRIORS, _PLANE, 2, 2),
    b"EDGE_SE3_XYZ_PRIOR": LineKind(Section.POSITION_PRIORS, _SPACE, 3, 3, num_offsets=1),
    b"EDGE_PRIOR_XY": LineKind(Section.LANDMARK_PRIORS, _PLANE, 2, 2),
    b"EDGE_POINTXYZ_PRIOR": LineKind(Section.LANDMARK_PRIORS, _SPACE, 3, 3),
    b"PARAMS_SE2OFFSET": LineKind(Section.OFFSETS, _PLANE, 3, stored=storage_from_angle),
    b"PARAMS_SE3OFFSET": LineKind(Section.OFFSETS, _SPACE, 7),
}
"""Kinds of lines by their tags."""


def read_g2o(
    path: FilePath, *, indefinite: Indefinite = "error", unknown: UnknownLines = "error"
) -> PoseGraph:
    """Read a pose graph from a g2o text file.

    If the file has edges but no vertices, poses are chained along edges from the lowest id, which
    is put at the origin, to each of the others by as few edges as possible, and each landmark is
    put at the mean of where its sightings see it. A file that has some vertices must have all.

    An information matrix is judged by itself, scaled to unit diagonal, so units do not matter. An
    eigenvalue of the scaled matrix counts as zero down to -1e-6 of the largest one.

    Args:
        path: the file; plain, bzip2 or gzip. It is read once from beginning to end: a FIFO or
            /dev/stdin will do.
        indefinite: what is done with an information matrix that is not positive semidefinite.
            `"error"`: it is refused. `"clip"`: negative eigenvalues of the scaled matrix are set
            to zero, and so are rows and columns whose diagonal entry is not positive. Some public
            files need that; it changes the measurements that it concerns.
        unknown: what is done with lines of kinds that are not read, such as cameras.
            `"error"`: the file is refused. `"skip"`: they are passed over, counted in
            `PoseGraph.skipped`, and a warning names them.

    Returns:
        The graph: vertices in the order of the file (those that it does not declare in the order
        of their ids), measurements in the order of the file, quaternions scaled to unit length.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format, holds kinds of lines that are not
            read, SE2 and SE3 at once, no poses at all, or an information matrix that is not
            positive semidefinite; the message gives the line.
        OptionError: `indefinite` or `unknown` is something else, or `path` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 4 0 0 4 0 1")
        >>> graph = caspar.io.read_g2o("pair.g2o")
        >>> graph.poses.shape, graph.sqrt_information[0].diagonal()
        ((2, 4), array([2., 2., 1.]))
    """
    return read_graph(path, TAGS, "read_g2o", indefinite, unknown)


def write_g2o(path: FilePath, graph: PoseGraph) -> None:
    """Write a pose graph as a g2o text file, so that `read_g2o` gives it back.

    Numbers are written with all the digits that float64 has. Angles, quaternions and roots of
    information come back to rounding, everything else as it is. Offsets are numbered anew. In
    space g2o wants an offset for each sighting and prior, so the identity is among them.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        graph: what to write.

    Raises:
        ValueError: the graph holds a number that is not finite, an index out of range, an id that
            is no integer from 0 to 2^63 - 1 or that is there twice, as those of a pose and of a
            landmark, or `path` is no path; nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 4 0 0 4 0 1")
        >>> caspar.io.write_g2o("copy.g2o", caspar.io.read_g2o("pair.g2o"))
        >>> Path("copy.g2o").read_text().splitlines()[-1]
        'EDGE_SE2 0 1 1.0 2.0 0.0 4.0 0.0 0.0 4.0 0.0 1.0'
    """
    path = path_text(path)
    check_g2o(graph)
    with open_for_packing(path) as stream:
        for text in _g2o_text(graph):
            stream.write(text)


def check_g2o(graph: PoseGraph) -> None:
    """Refuse a graph that the format cannot hold: a `ValueError`, see `write_g2o`."""
    check_writable(graph)
    both = np.intersect1d(graph.ids, graph.landmarks.ids)
    if len(both) > 0:
        raise ValueError(
            f"PoseGraph: id {both[0]} is a pose's and a landmark's; g2o has one numbering: "
            "add the greatest id of a pose to landmarks.ids"
        )


def _g2o_text(graph: PoseGraph) -> Iterator[bytes]:
    offsets = _OffsetIds(graph)
    kind, landmarks = graph.kind, graph.landmarks
    in_space = kind is _SPACE
    if in_space:
        yield from offsets.lines("PARAMS_SE3OFFSET")
    else:
        yield from offsets.lines("PARAMS_SE2OFFSET")
    yield from formatted(f"VERTEX_{kind.value}", graph.ids[:, None], _written(kind, graph.poses))
    tag = "VERTEX_TRACKXYZ" if in_space else "VERTEX_XY"
    yield from formatted(tag, landmarks.ids[:, None], landmarks.points)
    ends = graph.ids[np.stack([graph.index_a, graph.index_b], axis=1)]
    edges = _written(kind, graph.measurement)
    yield from formatted(f"EDGE_{kind.value}", ends, edges, triangles(graph.sqrt_information))
    yield from _sensor_edge_lines(graph, offsets)
    yield from _sighting_lines(graph, offsets)
    yield from _prior_lines(graph, offsets)
    # At the end, because GTSAM reads no edges behind them.
    for ids in (graph.ids[graph.fixed], landmarks.ids[landmarks.fixed]):
        yield "".join(f"FIX {name}\n" for name in ids.tolist()).encode()


def _sensor_edge_lines(graph: PoseGraph, offsets: "_OffsetIds") -> Iterator[bytes]:
    edges = graph.sensor_edges
    named = [offsets.of(edges.offset_a), offsets.of(edges.offset_b)]
    ids = np.column_stack([graph.ids[edges.ends], *named])
    tag = "EDGE_SE3_OFFSET" if graph.kind is _SPACE else "EDGE_SE2_OFFSET"
    numbers = _written(graph.kind, edges.measurement)
    yield from formatted(tag, ids, numbers, triangles(edges.sqrt_information))


def _sighting_lines(graph: PoseGraph, offsets: "_OffsetIds") -> Iterator[bytes]:
    in_space = graph.kind is _SPACE
    for group, plain, with_offset in (
        (graph.sightings, "EDGE_SE2_XY", "EDGE_SE2_POINTXY_OFFSET"),
        (graph.bearings, "EDGE_BEARING_SE2_XY", None),
    ):
        ends = np.stack([graph.ids[group.pose], graph.landmarks.ids[group.landmark]], axis=1)
        ids = np.column_stack([ends, offsets.of(group.offset)])
        is_moved = np.full(len(ids), True) if in_space else offsets.is_moved(group.offset)
        if with_offset is None and is_moved.any():
            raise ValueError(
                "PoseGraph.bearings: g2o has bearings from poses only, without offsets"
            )
        # Lines of both kinds are written in the order of the graph.
        edges = np.flatnonzero(np.diff(is_moved)) + 1
        for part in np.split(np.arange(len(ids)), edges):
            if len(part) == 0:
                continue
            moved = bool(is_moved[part[0]])
            tag = ("EDGE_SE3_TRACKXYZ" if in_space else with_offset) if moved else plain
            yield from formatted(
                str(tag),
                ids[part] if moved else ends[part],
                group.measurement[part],
                triangles(group.sqrt_information[part]),
            )


def _prior_lines(graph: PoseGraph, offsets: "_OffsetIds") -> Iterator[bytes]:
    in_space = graph.kind is _SPACE
    tags = ("EDGE_PRIOR_SE2", "EDGE_PRIOR_SE2_XY", "EDGE_PRIOR_XY")
    if in_space:
        tags = ("EDGE_SE3_PRIOR", "EDGE_SE3_XYZ_PRIOR", "EDGE_POINTXYZ_PRIOR")
    groups = (
        (graph.pose_priors, graph.ids),
        (graph.position_priors, graph.ids),
        (graph.landmark_priors, graph.landmarks.ids),
    )
    for tag, (group, all_ids) in zip(tags, groups, strict=True):
        ids = all_ids[group.index][:, None]
        if in_space and group is not graph.landmark_priors:
            ids = np.column_stack([ids, offsets.of(group.offset)])
        elif offsets.is_moved(group.offset).any():
            raise ValueError(f"PoseGraph: g2o has no offsets for {tag}")
        numbers = group.measurement
        if group is graph.pose_priors:
            numbers = _written(graph.kind, numbers)
        yield from formatted(tag, ids, numbers, triangles(group.sqrt_information))


def _written(kind: PoseGraphKind, poses: FloatArray) -> FloatArray:
    if kind is _PLANE:
        return angle_from_storage(poses)
    return np.concatenate([poses[:, 4:], poses[:, :4]], axis=1)


class _OffsetIds:
    """The distinct offsets of a graph, numbered in the order in which they are first used."""

    def __init__(self, graph: PoseGraph) -> None:
        self._kind = graph.kind
        self._ids: dict[bytes, int] = {}
        self._poses: list[FloatArray] = []
        in_space = graph.kind is _SPACE
        seen, edges = graph.sightings.offset, graph.sensor_edges
        # in the plane only what has an offset is written with one
        groups = [seen if in_space else seen[self.is_moved(seen)], edges.offset_a, edges.offset_b]
        if in_space:
            groups += [graph.pose_priors.offset, graph.position_priors.offset]
        for offsets in groups:
            for offset in offsets:
                if offset.tobytes() not in self._ids:
                    self._ids[offset.tobytes()] = len(self._poses)
                    self._poses.append(offset)

    def of(self, offsets: FloatArray) -> NDArray[np.int64]:
        return np.array([self._ids.get(offset.tobytes(), 0) for offset in offsets], np.int64)

    def is_moved(self, offsets: FloatArray) -> NDArray[np.bool_]:
        moved: NDArray[np.bool_] = (offsets != np.array(self._kind.identity)).any(axis=1)
        return moved

    def lines(self, tag: str) -> Iterator[bytes]:
        if self._poses:
            ids = np.arange(len(self._poses))[:, None]
            yield from formatted(tag, ids, _written(self._kind, np.stack(self._poses)))
