# %% [markdown]
# # How well a calibration is known

# %% [markdown]
"""How well a calibration is known: standard errors of OpenCV's own pictures of a chessboard.

A camera saw a board of 54 corners from 13 places. Its nine intrinsic parameters and the 13 poses
are estimated, then their covariance, scaled by the variance of the residuals, as nobody knows
beforehand how well corners are found. OpenCV's `calibrateCameraExtended` gives the same numbers.

    python examples/calibration_errors.py
"""

# %%
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.plot import Figure

CORNERS = Path(caspar.__file__).parents[1] / "data" / "chessboard_13.npz"
"""Pixels of the corners, the corners in squares of the board, and what OpenCV made of them."""

START = np.array([[530.0, 530.0, 320.0, 240.0, 0.0, 0.0, 0.0, 0.0, 0.0]])

# %% [markdown]
# ## The camera and what it saw
#
# A dataclass of scalars gives each parameter its name, in reports too.


# %%
@dataclass
class Lens:
    """The camera, in OpenCV's order: pixels, then what bends the picture."""

    fx: sf.Scalar
    fy: sf.Scalar
    cx: sf.Scalar
    cy: sf.Scalar
    k1: sf.Scalar
    k2: sf.Scalar
    p1: sf.Scalar
    p2: sf.Scalar
    k3: sf.Scalar


class Board(sf.Pose3):
    """Takes board to camera coordinates, in squares."""


class Corner(sf.V3):
    """A corner of the board, in squares."""


class Pixel(sf.V2):
    """Where a corner was found, in pixels."""


@caspar.factor
def corner_found(
    lens: Annotated[Lens, caspar.TunableUnique],
    board: Annotated[Board, caspar.TunableShared],
    corner: Annotated[Corner, caspar.ConstIndexed],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus found position, in pixels."""
    place = board * corner
    x, y = place[0] / place[2], place[1] / place[2]
    r2 = x * x + y * y
    radial = 1 + r2 * (lens.k1 + r2 * (lens.k2 + r2 * lens.k3))
    u = x * radial + 2 * lens.p1 * x * y + lens.p2 * (r2 + 2 * x * x)
    v = y * radial + 2 * lens.p2 * x * y + lens.p1 * (r2 + 2 * y * y)
    return sf.V2(lens.fx * u + lens.cx, lens.fy * v + lens.cy) - pixel


# %% [markdown]
# ## The start
#
# A guess for the camera, and a pose from each picture.


# %%
def start_pose(corners: NDArray[np.float64], pixels: NDArray[np.float64]) -> list[float]:
    """A pose from the homography of a flat board (Zhang, 2000), as qx qy qz qw, x y z."""
    fx, fy, cx, cy = START[0, :4]
    rays = (pixels - [cx, cy]) / [fx, fy]
    rows = []
    for (x, y, _), (u, v) in zip(corners, rays, strict=True):
        rows.append([x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, -u])
        rows.append([0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, -v])
    columns = np.linalg.svd(np.array(rows))[2][-1].reshape(3, 3).T
    columns *= np.sign(columns[2, 2]) / np.linalg.norm(columns[0])
    across = np.cross(columns[0], columns[1])
    turn = Rotation.from_matrix(np.column_stack([columns[0], columns[1], across]))
    return [*turn.as_quat(), *columns[2]]


def read() -> dict[str, Any]:
    """The arrays for `caspar.Solver.solve`."""
    data = np.load(CORNERS)
    num_boards, num_corners = data["corners"].shape[:2]
    board, corner = (index.ravel() for index in np.indices((num_boards, num_corners)))
    return {
        "Lens": START,
        "Board": np.array([start_pose(data["board"], pixels) for pixels in data["corners"]]),
        "corner_found": {
            "board": board,
            "corner": {"values": data["board"], "index": corner},
            "pixel": data["corners"].reshape(-1, 2),
        },
    }


# %% [markdown]
# ## The calibration, and its covariance


# %%
def calibrate() -> tuple[caspar.SolveResult, caspar.Covariance]:
    """The optimum, and the covariance of everything there."""
    arrays, solver = read(), caspar.Solver(corner_found, precision="float64")
    result = solver.solve(arrays)
    return result, solver.covariance(
        {**arrays, **result.values},
        {"Lens": "all", "Board": "all"},
        scale_by_residual_variance=True,
    )


# %% tags=["active-ipynb"]
# result, cov = calibrate()
# result

# %% [markdown]
# Fields with their standard errors:

# %% tags=["active-ipynb"]
# cov

# %% [markdown]
# A histogram of the distances between corners found and predicted shows whether a few of them
# are wrong. None is.

# %% tags=["active-ipynb"]
# caspar.plot.plot_residuals(result, "corner_found")

# %% [markdown]
# ## What depends on what
#
# k2 and k3 bend the picture nearly alike, so that one of them can make up for the other: each is
# known badly, while what both do together is known well. The focal lengths of both axes go together
# too, as they come from the same distance to the boards.


# %%
def draw_correlation(cov: caspar.Covariance) -> Figure:
    """The correlation of the nine parameters as an image."""
    names = list(Lens.__dataclass_fields__)
    figure = Figure(figsize=(4.5, 4.0), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cov.correlation("Lens")[0], cmap="RdBu", vmin=-1.0, vmax=1.0)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=axes)
    return figure


# %% tags=["active-ipynb"]
# draw_correlation(cov)


# %% tags=["active-py"]
def main() -> None:
    """Print the report, standard errors, and what depends on what."""
    result, cov = calibrate()
    print(result)
    print(f"\n{cov}")
    correlation = cov.correlation("Lens")[0]
    print(f"\ncorrelation of k2 and k3: {correlation[5, 8]:.3f}")


if __name__ == "__main__":
    main()
