"""Figures of solves, drawn by matplotlib without pyplot and its global state.

Input: a `SolveResult`, and the problem before and after. Output: a figure or an image file. Public
as `caspar.plot`, loaded when something is first drawn. The extra `plot` installs matplotlib.
"""

from caspar.errors import MissingPackageError

try:
    from caspar.plot.figures import Figure, plot_convergence, plot_costs, plot_residuals
    from caspar.plot.scenes import MAX_POINTS, plot_bundle_adjustment, plot_pose_graph
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise MissingPackageError("drawing", "matplotlib", "plot") from error

__all__ = [
    "MAX_POINTS",
    "Figure",
    "plot_bundle_adjustment",
    "plot_convergence",
    "plot_costs",
    "plot_pose_graph",
    "plot_residuals",
]
