# %% [markdown]
# # How well the poses of a graph are known

# %% [markdown]
"""How well the poses of a graph are known: ellipses of M3500, drawn into an image.

The first pose is held, so poses far from it are less certain; loops keep that small. Each ellipse
holds 95 % of where a pose may be. The edges of this file are far better than its information
matrices say, so covariances are scaled by the variance of the residuals.

    python examples/pose_graph_ellipses.py [IMAGE.png]
"""

# %%
import numpy as np
from matplotlib.collections import EllipseCollection
from numpy.typing import NDArray
from scipy.stats import chi2

import caspar
from caspar.plot import Figure
from examples import pose_graph

Array = NDArray[np.float64]

PLACE = slice(1, 3)
"""The translation in the tangent of a `Pose2`, behind the angle."""

SHARE = 0.95
EVERY = 25
"""One of so many poses gets an ellipse."""

# %% [markdown]
# ## From covariances to ellipses
#
# The squared length of a whitened error has a chi-square distribution: the axes of an ellipse are
# roots of eigenvalues times the root of its quantile.


# %%
def ellipses(covariances: Array, share: float = SHARE) -> tuple[Array, Array]:
    """Axes and angles of the ellipses that hold a share of a normal distribution.

    Args:
        covariances: (n, 2, 2).
        share: Between 0 and 1.

    Returns:
        (n, 2) lengths of the half axes, the longer one last, and (n,) its angle in radians.
    """
    variances, axes = np.linalg.eigh(covariances)
    lengths = np.sqrt(chi2.ppf(share, 2) * variances)
    return lengths, np.arctan2(axes[:, 1, 1], axes[:, 0, 1])


def draw(poses: Array, covariances: Array) -> Figure:
    """The path and its ellipses.

    Args:
        poses: (n, 4) cos sin x y.
        covariances: (n, 2, 2) of x and y.
    """
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots()
    axes.plot(*poses[:, 2:].T, color="0.6", linewidth=0.5)
    lengths, angles = ellipses(covariances[::EVERY])
    axes.add_collection(
        EllipseCollection(
            2.0 * lengths[:, 1],
            2.0 * lengths[:, 0],
            np.degrees(angles),
            units="xy",
            offsets=poses[::EVERY, 2:],
            offset_transform=axes.transData,
            facecolors="none",
            edgecolors="tab:blue",
        )
    )
    axes.set_aspect("equal")
    axes.set_title(f"Ellipses that hold {SHARE:.0%} of where poses may be, one of {EVERY}")
    return figure


# %% [markdown]
# ## The graph


# %%
def estimate() -> tuple[caspar.SolveResult, caspar.Covariance]:
    """The solved graph, and the covariances of all poses."""
    arrays = pose_graph.read()
    solver = caspar.Solver(pose_graph.FACTORS)
    result = solver.solve(arrays)
    return result, solver.covariance(
        {**arrays, **result.values}, {"Pose2": "all"}, scale_by_residual_variance=True
    )


# %% tags=["active-ipynb"]
# result, cov = estimate()
# result

# %% [markdown]
# The least certain poses are those that no loop ties to the first one.

# %% tags=["active-ipynb"]
# draw(result.values["Pose2"], cov["Pose2"][:, PLACE, PLACE])


# %% tags=["active-py"]
def main(image: str = "") -> caspar.Covariance:
    """Solve, find the covariances, print the largest ones; draw them if an image is named."""
    result, cov = estimate()
    print(result)
    print(f"\n{cov}")
    lengths, _ = ellipses(cov["Pose2"][:, PLACE, PLACE])
    worst = int(lengths[:, 1].argmax())
    heading = np.degrees(cov.standard_errors("Pose2")[worst, 0])
    axes = " and ".join(f"{length:.1f}" for length in lengths[worst])
    print(f"least certain pose: {worst}, half axes of {axes}, heading to {heading:.1f} degrees")
    if image != "":
        draw(result.values["Pose2"], cov["Pose2"][:, PLACE, PLACE]).savefig(image, dpi=150)
    return cov


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
