"""Files to plain NumPy arrays and back: bundle adjustment, pose graphs, point clouds.

This package knows nothing of factors or solvers. Its arrays are in caspar's storage order, so
that they can be given to `Solver.solve` as they are.
"""

from caspar.io.bal import BalProblem, read_bal, write_bal
from caspar.io.g2o import PoseGraph, read_g2o, write_g2o
from caspar.io.ply import PlyEncoding, write_ply
from caspar.io.pose_graph_kind import PoseGraphKind

__all__ = [
    "BalProblem",
    "PlyEncoding",
    "PoseGraph",
    "PoseGraphKind",
    "read_bal",
    "read_g2o",
    "write_bal",
    "write_g2o",
    "write_ply",
]
