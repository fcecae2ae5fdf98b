# %% [markdown]
# # A pose graph in the plane: Manhattan

# %% [markdown]
"""A pose graph in the plane: M3500, a simulated city, from its g2o file.

A robot drives through the streets of a grid and measures each of its motions, a little wrong. Where
it comes to a place again it measures that too: a loop. Odometry alone bends the city out of shape;
the loops pull it straight.

Every edge measures the motion between two poses, weighted by the square root of its information.
A prior holds the first pose, as edges alone leave the whole graph free to move. Such graphs need
exact steps, as loose ones lead into worse minima: the linear systems are factorised.

    python examples/pose_graph.py
"""

# %%
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import caspar
from caspar.io import read_g2o

GRAPH = Path(caspar.__file__).parents[1] / "data" / "M3500.g2o.bz2"

# %% [markdown]
# ## Two factors


# %%
@caspar.factor
def edge(
    a: Annotated[sf.Pose2, caspar.TunableShared],
    b: Annotated[sf.Pose2, caspar.TunableShared],
    measured: Annotated[sf.Pose2, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M33, caspar.ConstSequential],
) -> sf.V3:
    """The motion from a to b against the measured one: translation, then angle, as in g2o."""
    error = measured.inverse() * a.inverse() * b
    return sqrt_information * sf.V3(error.t[0], error.t[1], error.R.to_tangent()[0])


@caspar.factor
def prior(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    expected: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    """Hold a pose where it is."""
    return 1000.0 * sf.V3(*expected.local_coordinates(pose))


FACTORS = (edge, prior)


# %%
def read(path: Path = GRAPH) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes, from a g2o file."""
    graph = read_g2o(path)
    return {
        "Pose2": graph.poses,
        "edge": {
            "a": graph.index_a,
            "b": graph.index_b,
            "measured": graph.measurement,
            "sqrt_information": graph.sqrt_information,
        },
        "prior": {"pose": [0], "expected": graph.poses[:1]},
    }


# %% [markdown]
# ## From the file's start
#
# The file has the poses of odometry. A solve from there ends in the right minimum, though not every
# graph is so kind; see the notebook on graphs in space.

# %% tags=["active-ipynb"]
# arrays = read()
# result = caspar.Solver(FACTORS).solve(arrays, verbose=False)
# result

# %% [markdown]
# Each edge is drawn from pose to pose, in the colour of its weighted error. On the left loops are
# stretched across the map: their poses should be beside each other.


# %%
def draw(result: caspar.SolveResult) -> Figure:
    """The graph at the start and at the solution, edges by residual."""
    scene = caspar.scene.scene_of_result(result)
    figure, axes = plt.subplots(1, 2, figsize=(10.0, 5.0), layout="constrained")
    for axis, state in zip(axes, scene.states, strict=True):
        segments = state.segments["edge"][:, :, :2]
        order = np.argsort(state.errors["edge"])  # the worst on top
        lines = LineCollection(
            list(segments[order]), norm=LogNorm(0.05, 30.0), cmap="turbo", linewidths=0.8
        )
        lines.set_array(state.errors["edge"][order])
        axis.add_collection(lines)
        axis.autoscale()
        axis.set_aspect("equal")
        axis.set_axis_off()
        axis.set_title(f"{state.label}: chi2 {2.0 * state.cost:,.0f}", loc="left")
    figure.colorbar(lines, ax=axes, shrink=0.7, label="error of an edge, standard deviations")
    return figure


# %% tags=["active-ipynb"]
# draw(result);

# %% [markdown]
# The same in a few words, for any file of g2o: `caspar.pose_graph.solve(caspar.io.read_g2o(path))`,
# or on the command line `caspar graph M3500.g2o --out solved.g2o --html graph.html`.


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Solve the graph and print a report."""
    result = caspar.Solver(FACTORS).solve(read())
    print(result)
    print(f"\nchi2 {2.0 * result.initial_cost:,.1f} -> {2.0 * result.final_cost:.4f}")
    return result


if __name__ == "__main__":
    main()
