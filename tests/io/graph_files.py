"""Small graphs with every kind of line, and how to compare graphs."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from caspar.io import PoseGraph

PLANE = """\
PARAMS_SE2OFFSET 3 0.3 -0.2 0.7
PARAMS_SE2OFFSET 4 0 0 0
VERTEX_SE2 10 1 2 0.5
VERTEX_SE2 7 -1 0 -3
VERTEX_SE2 8 -1 0.4 2.1
VERTEX_XY 20 1.5 2.5
VERTEX_XY 21 -1.5 -2.5
EDGE_SE2 10 7 3 4 1.5 4 1 0.3 9 0.2 16
EDGE_SE2 8 7 0.3 -0.4 1.5 4 1 0.1 9 -0.7 16
EDGE_SE2_OFFSET 10 8 3 4 -1 0.5 2.8 4 1 0.1 9 -0.7 16
EDGE_SE2_OFFSET 8 7 4 4 0.5 1 -1.2 4 1 0.1 9 -0.7 16
EDGE_SE2_XY 10 20 0.3 0.7 2 0.5 3
EDGE_SE2_POINTXY_OFFSET 8 21 3 0.1 0.7 2 0.5 3
EDGE_SE2_XY 7 20 0.1 0.7 2 0.5 3
EDGE_BEARING_SE2_XY 10 21 0.4 5.5
EDGE_BEARING_SE2_XY 7 21 3.1 2.5
EDGE_PRIOR_SE2 7 1.2 0.3 3.1 4 1 0.3 9 0.2 16
EDGE_PRIOR_SE2_XY 7 1.2 0.3 4 1 3
EDGE_PRIOR_XY 21 1.2 0.3 4 1 3
FIX 10 20
"""

INFORMATION = "4 0.5 0.1 0.2 0 0.3 5 0 0.1 0 0.2 6 0.4 0 0 7 0.3 0 8 0.6 9"

SPACE = f"""\
PARAMS_SE3OFFSET 0 0 0 0 0 0 0 1
PARAMS_SE3OFFSET 5 0.1 -0.2 0.3 0.5 -0.5 0.5 0.5
VERTEX_SE3:QUAT 0 1 2 3 0 0 0 1
VERTEX_SE3:QUAT 1 2 1 -1 0.6 0 0 0.8
VERTEX_SE3:QUAT 2 0 1 0 0 0.8 0 -0.6
VERTEX_TRACKXYZ 10 0.5 1.5 -1
VERTEX_TRACKXYZ 11 -1 2 0
EDGE_SE3:QUAT 0 1 1 0 0.5 0 0 0.6 0.8 {INFORMATION}
EDGE_SE3:QUAT 2 1 0.3 -0.2 1 0.1 0.7 0.1 0.7 {INFORMATION}
EDGE_SE3_OFFSET 1 0 5 0 0.2 0.9 0.4 0.6 0 0.8 0 {INFORMATION}
EDGE_SE3_OFFSET 2 0 5 5 0.2 0.9 0.4 0 0 0.8 -0.6 {INFORMATION}
EDGE_SE3_TRACKXYZ 1 10 0 0.3 0.2 -0.5 2 0.5 0.1 3 0.2 4
EDGE_SE3_TRACKXYZ 2 11 5 1 0.2 0.4 2 0.5 0.1 3 0.2 4
EDGE_SE3_XYZ 0 11 1 0.2 0.4 2 0.5 0.1 3 0.2 4
EDGE_SE3_PRIOR 2 5 0.3 0.2 0.1 0 0.6 0 0.8 {INFORMATION}
EDGE_PRIOR_SE3 1 0.3 0.2 0.1 0 0.6 0 0.8 {INFORMATION}
EDGE_SE3_XYZ_PRIOR 1 5 0.3 0.2 0.1 2 0.5 0.1 3 0.2 4
EDGE_POINTXYZ_PRIOR 10 0.3 0.2 0.1 2 0.5 0.1 3 0.2 4
FIX 0 11
"""

TORO_PLANE = """\
VERTEX2 0 1 2 0.5
VERTEX2 1 -1 0 -3
EDGE2 0 1 3 4 1.5 4 1 9 16 0.3 0.2
FIX 1
"""

TORO_SPACE = f"""\
VERTEX3 0 1 2 3 0.1 -0.2 0.3
VERTEX3 1 2 1 -1 -2 1.2 3
EDGE3 0 1 1 0 0.5 0.3 0.2 -0.1 {INFORMATION}
"""

GTSAM_TEXT = """\
ODOMETRY 0 1 1 0.1 0.2 0.0001 0 0 4e-06 0 4e-06
LANDMARK 1 2 2 1 0.4 0 0.4
ODOMETRY 1 2 1 0 -0.1 0.0001 0.00001 0 4e-06 0 4e-06
LANDMARK 2 2 1 1 0.4 0.1 0.3
"""


def assert_graphs_equal(found: Any, wanted: Any, name: str = "graph", atol: float = 1e-13) -> None:
    """Compare graphs, part by part; numbers to rounding, everything else as it is."""
    for field in fields(found):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        where = f"{name}.{field.name}"
        if is_dataclass(one):
            assert_graphs_equal(one, other, where, atol)
        elif isinstance(one, np.ndarray) and one.dtype == np.float64:
            assert one.shape == other.shape, where
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=where)
        elif isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, where
            np.testing.assert_array_equal(one, other, err_msg=where)
        else:
            assert one == other, where


def information(graph: PoseGraph) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Information of edges."""
    roots = graph.sqrt_information
    found: np.ndarray[Any, np.dtype[np.float64]] = roots.transpose(0, 2, 1) @ roots
    return found
