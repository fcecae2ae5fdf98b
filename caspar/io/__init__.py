"""Files to plain NumPy arrays and back: bundle adjustment, pose graphs, point clouds.

This package knows nothing of factors or solvers. Its arrays are in caspar's storage order, so
that they can be given to `Solver.solve` as they are.
"""

from caspar.io.bal import BalProblem, read_bal, write_bal
from caspar.io.graphs.g2o import read_g2o, write_g2o
from caspar.io.graphs.gtsam import read_gtsam, read_pose_graph
from caspar.io.graphs.pose_graph import Landmarks, PoseGraph, PoseGraphKind, Priors, Sightings
from caspar.io.graphs.toro import read_toro, write_toro
from caspar.io.ply import PlyEncoding, write_ply

__all__ = [
    "BalProblem",
    "Landmarks",
    "PlyEncoding",
    "PoseGraph",
    "PoseGraphKind",
    "Priors",
    "Sightings",
    "read_bal",
    "read_g2o",
    "read_gtsam",
    "read_pose_graph",
    "read_toro",
    "write_bal",
    "write_g2o",
    "write_ply",
    "write_toro",
]
