"""Read the text files of landmark SLAM that come with GTSAM's examples.

Lines that are read::

    ODOMETRY id_a id_b x y angle covariance
    LANDMARK pose landmark x y covariance
    VERTEX2 id x y angle
    FIX id ...

The covariance is the upper triangle, row by row; GTSAM calls that `NoiseFormatCOV`, and finds it
by the zeros of a diagonal matrix. A landmark's id is its own: it may be that of a pose, too. GTSAM
turns x y of a LANDMARK line into bearing and range, with standard deviations that it chooses; here
the measurement stays what it is.

Cost: once per problem, some microseconds a line.
"""

from collections.abc import Mapping

from caspar.io.compressed import FilePath
from caspar.io.graphs.assemble import Indefinite, UnknownLines, read_graph
from caspar.io.graphs.g2o import TAGS as G2O_TAGS
from caspar.io.graphs.g2o import storage_from_angle
from caspar.io.graphs.lines import LineKind, Section
from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.graphs.toro import TAGS as TORO_TAGS

TAGS: Mapping[bytes, LineKind] = {
    b"ODOMETRY": LineKind(
        Section.EDGES, PoseGraphKind.SE2, 3, 3, is_covariance=True, stored=storage_from_angle
    ),
    b"LANDMARK": LineKind(Section.SIGHTINGS, PoseGraphKind.SE2, 2, 2, is_covariance=True),
    b"VERTEX2": TORO_TAGS[b"VERTEX2"],
}
"""Kinds of lines by their tags."""


def read_gtsam(path: FilePath, *, unknown: UnknownLines = "error") -> PoseGraph:
    """Read poses and landmarks in the plane from a text file of GTSAM's.

    Most of these files declare no vertices: poses are chained along edges, and each landmark is at
    the mean of where its sightings see it.

    Args:
        path: the file; plain, bzip2 or gzip.
        unknown: what is done with lines of kinds that are not read, such as BR; see `read_g2o`.

    Returns:
        The graph, with covariances turned into roots of information.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format, or a covariance is not positive
            definite; the message gives the line.
        OptionError: `unknown` is something else, or `path` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("map.txt").write_text('''ODOMETRY 0 1 1.0 0 0 0.01 0 0 0.01 0 0.01
        ... LANDMARK 0 5 2.0 1.0 0.04 0 0.04''')
        >>> caspar.io.read_gtsam("map.txt").counts()
        {'poses': 2, 'edges': 1, 'landmarks': 1, 'sightings': 1}
    """
    return read_graph(path, TAGS, "read_gtsam", "error", unknown, has_two_numberings=True)


def read_pose_graph(
    path: FilePath, *, indefinite: Indefinite = "error", unknown: UnknownLines = "error"
) -> PoseGraph:
    """Read a pose graph of any format: that of g2o, of TORO, or GTSAM's.

    The formats are told apart by their lines, each of which has a tag of its own.

    Args:
        path: the file; plain, bzip2 or gzip.
        indefinite: see `read_g2o`.
        unknown: see `read_g2o`.

    Returns:
        The graph.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file follows none of the formats; see `read_g2o`.
        OptionError: `indefinite` or `unknown` is something else, or `path` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 4 0 0 4 0 1")
        >>> caspar.io.read_pose_graph("pair.g2o").counts()
        {'poses': 2, 'edges': 1}
    """
    tags = {**G2O_TAGS, **TORO_TAGS, **TAGS}
    return read_graph(path, tags, "read_pose_graph", indefinite, unknown, has_two_numberings=True)
