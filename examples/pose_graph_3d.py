# %% [markdown]
# # A pose graph in space: a walk through a grid

# %% [markdown]
"""A pose graph in space: smallGrid3D, a simulated walk through a grid, from its g2o file.

Every edge measures the motion between two poses, weighted by the square root of its information.
A prior holds the first pose, as edges alone leave the whole graph free to move. The start is found
from the edges: the file's own is a hundred times as far away.

    python examples/pose_graph_3d.py
"""

# %%
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Line3DCollection

import caspar
from caspar.io import read_g2o

GRAPH = Path(caspar.__file__).parents[1] / "data" / "smallGrid3D.g2o.bz2"

# %% [markdown]
# ## Poses, motions, and what they cost


# %%
class Pose(sf.Pose3):
    """Takes body to world coordinates. In storage qx qy qz qw x y z."""


class Motion(sf.Pose3):
    """A measured relative pose."""


@caspar.factor
def odometry(
    start: Annotated[Pose, caspar.TunableShared],
    end: Annotated[Pose, caspar.TunableShared],
    motion: Annotated[Motion, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M66, caspar.ConstSequential],
) -> sf.V6:
    """The motion from start to end against the measured one: translation, then rotation vector."""
    error = motion.inverse() * start.inverse() * end
    return sqrt_information * sf.V6(*error.t, *error.R.to_tangent())


@caspar.factor
def prior(
    pose: Annotated[Pose, caspar.TunableShared],
    expected: Annotated[Pose, caspar.ConstSequential],
) -> sf.V6:
    """Hold a pose where it is."""
    return 1000.0 * sf.V6(*expected.local_coordinates(pose))


FACTORS = (odometry, prior)


# %%
def read(path: Path = GRAPH) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes, from a g2o file."""
    graph = read_g2o(path)
    # g2o's error is the vector part of a quaternion: half the rotation vector
    halves = np.array([1.0, 1.0, 1.0, 0.5, 0.5, 0.5])
    return {
        "Pose": graph.poses,
        "odometry": {
            "start": graph.index_a,
            "end": graph.index_b,
            "motion": graph.measurement,
            "sqrt_information": graph.sqrt_information * halves,
        },
        "prior": {"pose": [0], "expected": graph.poses[:1]},
    }


# %% [markdown]
# ## Where to start
#
# In space the start decides: rotations have many minima. `caspar.initialize.chordal` finds one from
# the edges alone, by two linear systems: first the rotations, then the places.

# %% tags=["active-ipynb"]
# arrays = read()
# solver = caspar.Solver(FACTORS)
# from_file = solver.solve(arrays, verbose=False)
# chordal = caspar.initialize.chordal(read_g2o(GRAPH))
# result = solver.solve({**arrays, "Pose": chordal}, verbose=False)
# for found in (from_file, result):
#     start, end = 2.0 * found.initial_cost, 2.0 * found.final_cost
#     print(f"chi2 {start:10,.0f} -> {end:8.2f} in {len(found.iterations)} iterations")


# %%
def draw(states: dict[str, tuple[float, np.ndarray, np.ndarray]]) -> Figure:
    """Graphs by title: chi2, segments and errors of their edges."""
    figure, axes = plt.subplots(
        *(1, len(states)),
        figsize=(11.0, 4.2),
        layout="constrained",
        subplot_kw={"projection": "3d"},
    )
    for axis, (title, (chi2, segments, errors)) in zip(axes, states.items(), strict=True):
        lines = Line3DCollection(list(segments), norm=LogNorm(1.0, 300.0), cmap="turbo", lw=0.8)
        lines.set_array(errors)
        axis.add_collection3d(lines)
        ends = segments.reshape(-1, 3)
        axis.scatter(*ends.T, s=3, c="0.2", depthshade=False)
        axis.set_title(f"{title}\nchi2 {chi2:,.0f}", fontsize="medium")
        axis.set_box_aspect(np.ptp(ends, axis=0), zoom=1.3)
        axis.set_axis_off()
    figure.colorbar(lines, ax=axes, shrink=0.7, label="error of an edge, standard deviations")
    return figure


def state_of(result: caspar.SolveResult, place: int) -> tuple[float, np.ndarray, np.ndarray]:
    """chi2, segments and errors of the start (0) or the solution (-1)."""
    state = caspar.scene.scene_of_result(result).states[place]
    return 2.0 * state.cost, state.segments["odometry"], state.errors["odometry"]


# %% tags=["active-ipynb"]
# draw(
#     {
#         "the file": state_of(from_file, 0),
#         "chordal estimate": state_of(result, 0),
#         "solution": state_of(result, -1),
#     }
# );


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Solve the graph and print a report."""
    arrays = {**read(), "Pose": caspar.initialize.chordal(read_g2o(GRAPH))}
    result = caspar.Solver(FACTORS).solve(arrays)
    print(result)
    print(f"\nchi2 {2.0 * result.initial_cost:,.1f} -> {2.0 * result.final_cost:.2f}")
    return result


if __name__ == "__main__":
    main()
