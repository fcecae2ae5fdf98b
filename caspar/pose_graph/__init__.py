"""Pose graphs: the factors of `caspar.io.PoseGraph`, their errors, and a solve with good defaults.

`solve` takes a graph to a `Summary` that has the solved graph. `problem` gives factors, arrays and
what is held, for a solver of your own. `chi2` sums the squares that g2o sums. `optimize_open3d`
takes a pose graph of Open3D.
"""

from caspar.pose_graph.errors import chi2, chi2_by_kind
from caspar.pose_graph.open3d import Open3DResult, optimize_open3d
from caspar.pose_graph.problem import Problem, problem, solved_graph
from caspar.pose_graph.solve import Summary, solve
from caspar.pose_graph.start import Initialize, Start, start_poses

__all__ = [
    "Initialize",
    "Open3DResult",
    "Problem",
    "Start",
    "Summary",
    "chi2",
    "chi2_by_kind",
    "optimize_open3d",
    "problem",
    "solve",
    "solved_graph",
    "start_poses",
]
