# %% [markdown]
# # Two lenses and a board that is not quite flat

# %% [markdown]
"""Calibrate cameras with OpenCV's rational distortion model, from views of a printed board.

Two cameras see a flat board of points, each from several places. Their 12 intrinsic parameters,
where they stood, and the board itself are estimated: a printed board is good to a tenth of a
millimetre only, and not quite flat.

    python examples/camera_calibration.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]

# %% [markdown]
# ## What the solver moves


# %%
@dataclass
class Intrinsics:
    """A camera, in OpenCV's order.

    Attributes:
        fx, fy: Focal lengths in pixels.
        cx, cy: Principal point in pixels.
        k1, k2, k3, k4, k5, k6: Radial distortion, numerator and denominator.
        p1, p2: Tangential distortion.
    """

    fx: sf.Scalar
    fy: sf.Scalar
    cx: sf.Scalar
    cy: sf.Scalar
    k1: sf.Scalar
    k2: sf.Scalar
    p1: sf.Scalar
    p2: sf.Scalar
    k3: sf.Scalar
    k4: sf.Scalar
    k5: sf.Scalar
    k6: sf.Scalar


class View(sf.Pose3):
    """Takes board to camera coordinates; the camera looks along its z axis."""


class Corner(sf.V3):
    """A point of the board, in metres."""


# %% [markdown]
# ## Factors
#
# The second one says that the board is nearly what was printed: without it nothing would say how
# large it is.


# %%
class Pixel(sf.V2):
    """A measured position, in pixels."""


@caspar.factor
def opencv_pixel(
    camera: Annotated[Intrinsics, caspar.TunableShared],
    view: Annotated[View, caspar.TunableShared],
    corner: Annotated[Corner, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured position: the model of OpenCV's `projectPoints`."""
    x, y, depth = view * corner
    safe_depth = depth + sf.epsilon() * sf.sign_no_zero(depth)
    x, y = x / safe_depth, y / safe_depth
    r2 = x * x + y * y
    numerator = 1 + r2 * (camera.k1 + r2 * (camera.k2 + r2 * camera.k3))
    denominator = 1 + r2 * (camera.k4 + r2 * (camera.k5 + r2 * camera.k6))
    radial = numerator / denominator
    distorted_x = x * radial + 2 * camera.p1 * x * y + camera.p2 * (r2 + 2 * x * x)
    distorted_y = y * radial + 2 * camera.p2 * x * y + camera.p1 * (r2 + 2 * y * y)
    return sf.V2(camera.fx * distorted_x + camera.cx, camera.fy * distorted_y + camera.cy) - pixel


@caspar.factor
def printed_corner(
    corner: Annotated[Corner, caspar.TunableShared],
    drawn: Annotated[Corner, caspar.ConstSequential],
) -> sf.V3:
    """How far a corner is off where it was drawn, in tenths of a millimetre."""
    return (corner - drawn) / 1e-4


FACTORS = (opencv_pixel, printed_corner)

# %% [markdown]
# ## Simulated photographs

# %%
TRUE_CAMERAS = np.array(
    [
        [820.0, 815.0, 642.0, 358.0, 0.3, -0.15, 1e-3, -5e-4, 0.02, 0.6, -0.2, 0.03],
        [1150.0, 1152.0, 955.0, 545.0, -0.28, 0.1, -4e-4, 8e-4, -0.02, 0.05, 0.01, 0.0],
    ]
)
"""As `Intrinsics`: a wide angle lens, and one with barrel distortion."""

START = np.array(
    [[800.0, 800.0, 640.0, 360.0] + 8 * [0.0], [1200.0, 1200.0, 960.0, 540.0] + 8 * [0.0]]
)


def project(cameras: Array, views: Array, corners: Array) -> Array:
    """Pixels of corners, (n, 2), in plain NumPy; all arguments are (n, storage_dim)."""
    fx, fy, cx, cy, k1, k2, p1, p2, k3, k4, k5, k6 = cameras.T
    in_camera = Rotation.from_quat(views[:, :4]).apply(corners) + views[:, 4:]
    x, y = in_camera[:, 0] / in_camera[:, 2], in_camera[:, 1] / in_camera[:, 2]
    r2 = x**2 + y**2
    radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    u = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x**2)
    v = y * radial + 2 * p2 * x * y + p1 * (r2 + 2 * y**2)
    return np.stack([fx * u + cx, fy * v + cy], axis=1)


def simulate(
    views_each: int = 20, side: int = 9, noise: float = 0.3, seed: int = 0
) -> dict[str, Any]:
    """Photographs with noise, and start values as from a data sheet.

    Args:
        views_each: Photographs by each camera.
        side: Corners along an edge of the board.
        noise: Standard deviation, in pixels.
        seed: Of the noise.

    Returns:
        What `caspar.Solver.solve` takes.
    """
    random = np.random.default_rng(seed)
    num_views, num_corners = 2 * views_each, side * side
    grid = np.linspace(-0.4, 0.4, side)
    drawn = np.stack(
        [*(axis.ravel() for axis in np.meshgrid(grid, grid)), np.zeros(num_corners)], 1
    )
    corners = drawn + random.normal(0.0, 1e-4, drawn.shape)
    turns = Rotation.from_rotvec(random.uniform(-0.5, 0.5, (num_views, 3)))
    places = random.uniform([-0.2, -0.2, 0.7], [0.2, 0.2, 1.3], (num_views, 3))
    views = np.concatenate([turns.as_quat(), places], axis=1)
    view, corner = (index.ravel() for index in np.indices((num_views, num_corners)))
    camera = view % 2
    pixels = project(TRUE_CAMERAS[camera], views[view], corners[corner])
    start = Rotation.from_rotvec(random.normal(0.0, 0.05, (num_views, 3))) * turns
    return {
        "Intrinsics": START,
        "View": np.concatenate(
            [start.as_quat(), places + random.normal(0.0, 0.03, places.shape)], axis=1
        ),
        "Corner": drawn,
        "opencv_pixel": {
            "camera": camera,
            "view": view,
            "corner": corner,
            "pixel": pixels + random.normal(0.0, noise, pixels.shape),
        },
        "printed_corner": {"corner": np.arange(num_corners), "drawn": drawn},
    }


# %% [markdown]
# ## Solve

# %% tags=["active-ipynb"]
# arrays = simulate()
# result = caspar.Solver(FACTORS).solve(arrays, max_iterations=500, verbose=False)
# result

# %% [markdown]
# Above: corners of some photographs as they were measured (dots), and where the start (red) and the
# solution (blue) predict them. Below: by how many pixels each lens bends a ray, and the errors that
# are left. Those are the noise of the photographs: a round cloud with a deviation of 0.3 pixels.


# %%
def draw(arrays: dict[str, Any], result: caspar.SolveResult) -> Figure:
    """Photographs before and after, distortion of both lenses, errors."""
    seen = arrays["opencv_pixel"]
    rows = seen["camera"], seen["view"], seen["corner"]
    names = "Intrinsics", "View", "Corner"
    before, after = (
        project(*(values[name][row] for name, row in zip(names, rows, strict=True)))
        for values in (arrays, result.values)
    )
    figure = plt.figure(figsize=(10.5, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 12)
    for number, view in enumerate((0, 1, 2, 3)):
        axis, of = figure.add_subplot(grid[0, 3 * number : 3 * number + 3]), seen["view"] == view
        axis.plot(*seen["pixel"][of].T, "o", color="0.8", ms=5)
        axis.plot(*before[of].T, ".", color="#e5383b", ms=3)
        axis.plot(*after[of].T, ".", color="#1f5fa8", ms=3)
        axis.set(aspect="equal", title=f"camera {view % 2}, view {view}", xticks=[], yticks=[])
        axis.invert_yaxis()
    straight = np.zeros(8)
    for number, camera in enumerate(result.values["Intrinsics"]):
        axis = figure.add_subplot(grid[1, 4 * number : 4 * number + 4])
        width, height = 2.0 * camera[2], 2.0 * camera[3]
        x, y = np.meshgrid(
            np.linspace(-0.9, 0.9, 80) * camera[2] / camera[0],
            np.linspace(-0.9, 0.9, 50) * camera[3] / camera[1],
        )
        rays = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], axis=1)
        still = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], (len(rays), 1))
        bent, plain = (
            project(np.tile(one, (len(rays), 1)), still, rays)
            for one in (camera, np.concatenate([camera[:4], straight]))
        )
        shift = np.linalg.norm(bent - plain, axis=1).reshape(x.shape)
        pixels = plain.reshape(*x.shape, 2)
        drawn = axis.contourf(pixels[..., 0], pixels[..., 1], shift, levels=12, cmap="viridis")
        figure.colorbar(drawn, ax=axis, label="bent by, pixels", orientation="horizontal")
        axis.set(aspect="equal", xlim=(0, width), ylim=(height, 0), title=f"lens {number}")
    axis = figure.add_subplot(grid[1, 8:])
    axis.plot(*(after - seen["pixel"]).T, ".", color="#1f5fa8", ms=2, alpha=0.5)
    axis.set(
        aspect="equal", title="errors that are left, pixels", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3)
    )
    return figure


# %% tags=["active-ipynb"]
# draw(arrays, result);


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Solve and print the report."""
    arrays = simulate()
    result = caspar.Solver(FACTORS).solve(arrays, max_iterations=500)
    print(result)
    return result


if __name__ == "__main__":
    main()
