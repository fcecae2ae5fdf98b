# %% [markdown]
# # A COLMAP model

# %% [markdown]
"""A COLMAP model, adjusted as COLMAP does, then by a factor with one of its camera models.

Eight pictures of a crane's mast, matched and reconstructed by COLMAP. `caspar.colmap` reads and
writes its models and does what its `bundle_adjuster` does. The second part takes the model's arrays
to a solver of one's own: the place to add other residuals.

    python examples/colmap_model.py
"""

# %%
import dataclasses
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import caspar

MODEL = Path(caspar.__file__).parents[1] / "data" / "crane_mast.tar.xz"
CAMERA = caspar.cameras.MODELS["SIMPLE_RADIAL"]

# %% [markdown]
# ## Read it and adjust it
#
# A model is a folder of binary or text files. Its images, cameras and points are plain arrays.


# %%
def read() -> caspar.colmap.Model:
    """The model, from an archive of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(MODEL) as archive:
            archive.extractall(folder, filter="data")
        return caspar.colmap.read_model(f"{folder}/crane_mast")


def shaken(model: caspar.colmap.Model, size: float = 0.01) -> caspar.colmap.Model:
    """The model with points moved at random, as if it were less far along."""
    xyz = model.points.xyz
    extent = np.ptp(np.percentile(xyz, [5, 95], axis=0), axis=0).max()
    moved = xyz + np.random.default_rng(0).normal(0.0, size * extent, xyz.shape)
    return dataclasses.replace(model, points=dataclasses.replace(model.points, xyz=moved))


# %% tags=["active-ipynb"]
# model = shaken(read())
# summary = caspar.colmap.bundle_adjustment(model, verbose=False)
# print(summary)

# %% [markdown]
# ## What it looks like
#
# The mast from the side; points by their reprojection error, cameras with their view directions.


# %%
def draw(scene: caspar.scene.Scene) -> Figure:
    """Start and solution, along the axis in which the scene is flattest."""
    last = scene.states[-1].places["point"]
    centre = np.median(last, axis=0)
    low, high = np.percentile(last, [2, 98], axis=0)
    near = last[((last >= low) & (last <= high)).all(axis=1)]
    _, axes_of_scene = np.linalg.eigh(np.cov((near - centre).T))
    across = axes_of_scene[:, ::-1][:, :2]
    figure, axes = plt.subplots(1, 2, figsize=(10.0, 4.2), layout="constrained", sharey=True)
    for axis, state in zip(axes, scene.states, strict=True):
        points = (state.places["point"] - centre) @ across
        cameras = (state.places["image"] - centre) @ across
        drawn = axis.scatter(
            *points.T, s=3.0, c=state.errors["point"], norm=LogNorm(0.1, 30.0), cmap="turbo"
        )
        axis.plot(*cameras.T, "k^", ms=6)
        axis.set_title(f"{state.label}: cost {state.cost:,.0f}", loc="left")
        ends = np.concatenate([(near - centre) @ across, cameras])
        low, high = ends.min(axis=0), ends.max(axis=0)
        margin = 0.05 * (high - low)
        (left, down), (right, up) = low - margin, high + margin
        axis.set(xlim=(left, right), ylim=(down, up))
        axis.set_aspect("equal")
        axis.set_axis_off()
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="reprojection error, pixels")
    return figure


# %% tags=["active-ipynb"]
# draw(caspar.scene.scene_of_models(model, summary));

# %% [markdown]
# ## A solver of one's own
#
# `caspar.cameras` has COLMAP's camera models as functions for residuals. Here all images share one
# lens, and its principal point moves too, which COLMAP holds by default.


# %%
class Point(sf.V3):
    """A point in world coordinates."""


@caspar.factor
def reprojection(
    cam_from_world: Annotated[sf.Pose3, caspar.TunableShared],
    lens: Annotated[sf.V4, caspar.TunableUnique],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured pixel; the principal point moves too."""
    return CAMERA.residual(lens, cam_from_world * point, pixel)


def arrays_of(model: caspar.colmap.Model) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes."""
    images, points = model.images, model.points
    is_seen = images.point_ids != caspar.colmap.NO_POINT
    image_rows = np.repeat(np.arange(len(images.ids)), np.diff(images.offsets))
    row_of_point = {point_id: row for row, point_id in enumerate(points.ids.tolist())}
    return {
        "Pose3": images.cam_from_world[:, [1, 2, 3, 0, 4, 5, 6]],  # from qw first to qw last
        "Matrix41": model.cameras.parameters[None],
        "Point": points.xyz,
        "reprojection": {
            "cam_from_world": image_rows[is_seen],
            "point": [row_of_point[point_id] for point_id in images.point_ids[is_seen].tolist()],
            "pixel": images.keypoints[is_seen],
        },
    }


# %% tags=["active-ipynb"]
# own = caspar.Solver([reprojection], precision="float64").solve(
#     arrays_of(summary.model), verbose=False
# )
# summary.final_cost, own.final_cost

# %% tags=["active-ipynb"]
# caspar.plot.plot_residuals(own, "reprojection")


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Adjust the model twice."""
    model = read()
    summary = caspar.colmap.bundle_adjustment(model)
    print(f"{summary.brief_report()}\n")
    result = caspar.Solver([reprojection], precision="float64").solve(arrays_of(summary.model))
    print(result)
    return result


if __name__ == "__main__":
    main()
