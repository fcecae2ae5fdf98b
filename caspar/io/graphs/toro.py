"""Read and write pose graphs in the text format of TORO.

Lines that are read (Grisetti, Stachniss, Burgard, *Nonlinear Constraint Network Optimization for
Efficient Map Learning*, IEEE Transactions on ITS 2009, and the format page of its program)::

    VERTEX2 id x y angle
    VERTEX3 id x y z roll pitch yaw
    EDGE2 id_a id_b x y angle ff fs ss rr fr sr
    EDGE3 id_a id_b x y z roll pitch yaw information
    FIX id ...                                     an addition of other programs

As in g2o, vertices are world_T_pose and edges measure a_T_b. Of the information in the plane,
f is forward (x), s sideward (y), r rotation. In space it is the upper triangle, row by row, of the
inverse covariance of x y z roll pitch yaw. The rotation is ``Rz(yaw) Ry(pitch) Rx(roll)``. For
small errors roll, pitch and yaw are the rotation vector, so that `PoseGraph`'s information, which
is of half of it, is four times as large for rotations.

GTSAM reads EDGE3 with the same numbers, but takes its information in the order of its own tangent
space, rotations first.

Cost: once per problem, some microseconds a line.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from caspar.io.compressed import FilePath, path_text
from caspar.io.graphs.assemble import Indefinite, UnknownLines, read_graph
from caspar.io.graphs.g2o import angle_from_storage, storage_from_angle
from caspar.io.graphs.information import TORO_TRIANGLE, information_from_toro
from caspar.io.graphs.lines import LineKind, OtherOrder, Section, as_written
from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.graphs.writing import check_writable, formatted, triangles
from caspar.io.replace import open_for_packing
from caspar.io.rotations import FloatArray, multiply

_PLANE, _SPACE = PoseGraphKind.SE2, PoseGraphKind.SE3

_HALVES = np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
"""Errors of roll, pitch and yaw over those of the quaternion's vector part."""


def storage_from_euler(written: FloatArray) -> FloatArray:
    """Poses in storage order, qx qy qz qw x y z, from (n, 6) x y z roll pitch yaw."""
    half = 0.5 * written[:, 3:]
    turns = []
    for axis in (2, 1, 0):
        turn = np.zeros((len(written), 4))
        turn[:, axis] = np.sin(half[:, axis])
        turn[:, 3] = np.cos(half[:, axis])
        turns.append(turn)
    quaternion = multiply(multiply(turns[0], turns[1]), turns[2])
    return np.concatenate([quaternion, written[:, :3]], axis=1)


def euler_from_storage(poses: FloatArray) -> FloatArray:
    """(n, 6) x y z roll pitch yaw from poses in storage order.

    Near a pitch of a quarter turn roll and yaw are not known singly. Roll is then as rounding has
    it, and yaw is what is left with that roll, so that the rotation is exact all the same.
    """
    x, y, z, w = poses[:, :4].T
    first = (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y))
    second = (2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x))
    third = (2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y))
    roll = np.arctan2(second[2], third[2])
    cosine, sine = np.cos(roll), np.sin(roll)
    # Rz(yaw) Ry(pitch) has the second column (-sin(yaw), cos(yaw), 0).
    yaw = np.arctan2(-(cosine * second[0] - sine * third[0]), cosine * second[1] - sine * third[1])
    pitch = np.arctan2(-first[2], np.cos(yaw) * first[0] + np.sin(yaw) * first[1])
    return np.column_stack([poses[:, 4:], roll, pitch, yaw])


def _of_halves(matrices: FloatArray) -> FloatArray:
    """Information of the quaternion's vector part, from that of roll, pitch and yaw."""
    with np.errstate(over="ignore"):
        scaled: FloatArray = matrices * _HALVES[:, None] * _HALVES
    largest = np.finfo(np.float64).max
    return np.clip(scaled, -largest, largest)


TAGS: Mapping[bytes, LineKind] = {
    b"VERTEX2": LineKind(Section.POSES, _PLANE, 3, stored=storage_from_angle),
    b"VERTEX3": LineKind(Section.POSES, _SPACE, 6, stored=storage_from_euler),
    b"EDGE2": LineKind(
        Section.EDGES,
        _PLANE,
        3,
        3,
        stored=storage_from_angle,
        information=information_from_toro,
        other_order=OtherOrder(
            as_written,
            "In g2o's order, the upper triangle row by row, all matrices of these lines are: "
            "programs from before g2o's tags of today write VERTEX2 and EDGE2 with it. If this "
            "file is of such a program, rename VERTEX2 to VERTEX_SE2 and EDGE2 to EDGE_SE2",
        ),
    ),
    b"EDGE3": LineKind(
        Section.EDGES, _SPACE, 6, 6, stored=storage_from_euler, information=_of_halves
    ),
}
"""Kinds of lines by their tags."""


def read_toro(
    path: FilePath, *, indefinite: Indefinite = "error", unknown: UnknownLines = "error"
) -> PoseGraph:
    """Read a pose graph from a TORO text file.

    Args:
        path: the file; plain, bzip2 or gzip.
        indefinite: what is done with an information matrix that is not positive semidefinite; see
            `read_g2o`.
        unknown: what is done with lines of kinds that are not read, such as EQUIV; see `read_g2o`.

    Returns:
        The graph; its errors and information are those that `PoseGraph` explains.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format; see `read_g2o`.
        OptionError: `indefinite` or `unknown` is something else, or `path` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.graph").write_text('''VERTEX2 0 0 0 0
        ... VERTEX2 1 1.0 2.0 0
        ... EDGE2 0 1 1.1 2.0 0 4 0 4 1 0 0''')
        >>> graph = caspar.io.read_toro("pair.graph")
        >>> graph.measurement[0, 2:], graph.sqrt_information[0].diagonal()
        (array([1.1, 2. ]), array([2., 2., 1.]))
    """
    return read_graph(path, TAGS, "read_toro", indefinite, unknown)


def write_toro(path: FilePath, graph: PoseGraph) -> None:
    """Write a pose graph as a TORO text file, so that `read_toro` gives it back to rounding.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        graph: what to write: poses, edges and poses that are held.

    Raises:
        ValueError: the graph has landmarks, bearings or priors, for which the format has no lines;
            a number that is not finite; an index or an id that `write_g2o` refuses; or `path` is
            no path. Nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 4 0 0 4 0 1")
        >>> caspar.io.write_toro("pair.graph", caspar.io.read_g2o("pair.g2o"))
        >>> Path("pair.graph").read_text().splitlines()[-1]
        'EDGE2 0 1 1.0 2.0 0.0 4.0 0.0 4.0 1.0 0.0 0.0'
    """
    path = path_text(path)
    check_toro(graph)
    with open_for_packing(path) as stream:
        for text in _toro_text(graph):
            stream.write(text)


def check_toro(graph: PoseGraph) -> None:
    """Refuse a graph that the format cannot hold: a `ValueError`, see `write_toro`."""
    check_writable(graph)
    others = [name for name in graph.counts() if name not in ("poses", "edges")]
    if others:
        raise ValueError(f"PoseGraph: TORO's format has no {', no '.join(others)}; use write_g2o")


def _toro_text(graph: PoseGraph) -> Iterator[bytes]:
    ids = graph.ids[:, None]
    ends = graph.ids[np.stack([graph.index_a, graph.index_b], axis=1)]
    fixes = "".join(f"FIX {name}\n" for name in graph.ids[graph.fixed].tolist()).encode()
    if graph.kind is _PLANE:
        order = np.argsort(TORO_TRIANGLE)
        numbers = triangles(graph.sqrt_information)[:, order]
        yield from formatted("VERTEX2", ids, angle_from_storage(graph.poses))
        yield from formatted("EDGE2", ends, angle_from_storage(graph.measurement), numbers)
        yield fixes  # at the end, because GTSAM reads no edges behind them
        return
    numbers = triangles(graph.sqrt_information / _HALVES)
    yield from formatted("VERTEX3", ids, euler_from_storage(graph.poses))
    yield from formatted("EDGE3", ends, euler_from_storage(graph.measurement), numbers)
    yield fixes
