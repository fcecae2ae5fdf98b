# %% [markdown]
# # Bundle adjustment: Trafalgar Square

# %% [markdown]
"""Bundle adjustment with a camera of one's own: 21 cameras, 11315 points, 36455 observations.

Tourists took 21 pictures of a square. Where did they stand, and what did they see? The start is
rough: predicted pixels are off by ten and more. The solver moves cameras, lenses and points until
they agree with the pictures.

The problem is `Trafalgar-21` of *Bundle Adjustment in the Large* (Agarwal, Snavely, Seitz,
Szeliski, ECCV 2010), from the folder `data` of this repository.

    python examples/bundle_adjustment.py
    python examples/bundle_adjustment.py --html out/trafalgar.html
"""

# %% tags=["active-py"]
import argparse

# %%
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import caspar

DATA = Path(caspar.__file__).parents[1] / "data"

# %% [markdown]
# ## A camera and its residual
#
# Node types are what the solver moves: cameras and points. The residual of an observation is the
# predicted pixel minus the measured one. Nothing else has to be written: derivatives and kernels
# come from this function.


# %%
@dataclass
class Camera:
    """In storage qx qy qz qw tx ty tz f k1 k2: what `caspar.io.read_bal` returns."""

    cam_T_world: sf.Pose3
    calibration: sf.V3


class Point(sf.V3):
    """A point in world coordinates."""


class Pixel(sf.V2):
    """A measurement."""


@caspar.factor
def reprojection(
    camera: Annotated[Camera, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured position, in pixels."""
    focal_length, k1, k2 = camera.calibration
    x, y, depth = camera.cam_T_world * point
    plane = sf.V2(-x / depth, -y / depth)  # the camera looks along its negative z axis
    radius_squared = plane.squared_norm()
    return focal_length * (1 + k1 * radius_squared + k2 * radius_squared**2) * plane - pixel


# %%
def read(path: Path = DATA / "problem-21-11315-pre.txt.bz2") -> dict[str, Any]:
    """What `caspar.Solver.solve` takes."""
    problem = caspar.io.read_bal(path)
    return {
        "Camera": problem.cameras,
        "Point": problem.points,
        "reprojection": {
            "camera": problem.camera_index,
            "point": problem.point_index,
            "pixel": problem.pixels,
        },
    }


# %% [markdown]
# ## Solve
#
# A `Recording` keeps the values of each iteration, for the pictures below.

# %% tags=["active-ipynb"]
# recording = caspar.Recording()
# result = caspar.Solver([reprojection]).solve(read(), on_iteration=recording, verbose=False)
# result

# %% [markdown]
# ## Before and after, from above
#
# Each point has the colour of its residual: how far, on average, the pictures say it is from where
# it should be. Triangles are cameras. The buildings around the square are there from the start, as
# the start comes from a reconstruction; the solve makes them agree with every picture at once.


# %%
def draw(result: caspar.SolveResult) -> Figure:
    """The scene from above, at the start and at the solution."""
    scene = caspar.scene.scene_of_result(result, unit="px")
    figure, axes = plt.subplots(
        1, 2, figsize=(10.0, 4.6), layout="constrained", facecolor="#0d1117"
    )
    for axis, state in zip(axes, scene.states, strict=True):
        points, cameras = state.places["Point"], state.places["Camera"]
        drawn = axis.scatter(
            *(points[:, 0], points[:, 2]),
            s=1.0,
            c=state.errors["Point"],
            norm=LogNorm(0.1, 20.0),
            cmap="turbo",
        )
        axis.scatter(cameras[:, 0], cameras[:, 2], s=30, c="w", marker="^")
        seen = np.concatenate([points, np.repeat(cameras, 100, axis=0)])
        low, high = np.percentile(seen, [1.5, 98.5], axis=0)
        axis.set(xlim=(low[0], high[0]), ylim=(low[2], high[2] + 0.3))
        axis.set_aspect("equal")
        axis.set_title(f"{state.label}: cost {state.cost:,.0f}", loc="left", color="w")
        axis.set_axis_off()
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, label="residual, pixels")
    bar.ax.tick_params(colors="w")
    bar.ax.yaxis.label.set_color("w")
    return figure


# %% tags=["active-ipynb"]
# draw(result);

# %% [markdown]
# The same as a page that can be turned with the mouse, with a slider over the iterations. It is one
# file and needs no network: open `trafalgar.html` in a browser.

# %% tags=["active-ipynb"]
# result.to_html("trafalgar.html", recording)


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> caspar.SolveResult:
    """Solve, print the report, and write a view where that is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--html", type=Path, help="file for an interactive view")
    options = parser.parse_args(arguments)
    recording = caspar.Recording()
    result = caspar.Solver([reprojection]).solve(read(), on_iteration=recording)
    print(result)
    if options.html is not None:
        result.to_html(options.html, recording)
    return result


if __name__ == "__main__":
    main()
