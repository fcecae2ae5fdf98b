# %% [markdown]
# # Where to hold a chessboard

# %% [markdown]
"""Where to hold a chessboard: a calibration of a camera, derived by JAX.

Pictures of a board determine a lens. How well depends on how the board is tilted. The lens that a
calibration finds follows each measured corner; how strongly, says its derivative through the
solve. The length of that derivative is what noise of one pixel makes of the focal length: here it
is compared for tilts, and the corners that matter most are found.

Without JAX the derivative is asked for by hand, of `Solver.gradient`.

    python examples/differentiable_calibration.py
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

try:
    import jax  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    jax = None

Rows = NDArray[np.float64]
Index = NDArray[np.integer[Any]]

NUM_VIEWS = 4
BOARD = 0.04 * np.array([[x, y, 0.0] for x in range(-4, 5) for y in range(-3, 4)])
TRUE_LENS = np.array([[800.0, 320.0, 240.0, -0.2, 0.05]])
TILTS = (10, 20, 30, 45)
"""Degrees."""

# %% [markdown]
# ## A lens, a board, four pictures


# %%
class Lens(sf.V5):
    """Focal length, centre (2), and two coefficients of radial distortion."""


@caspar.factor
def corner(
    lens: Annotated[Lens, caspar.TunableUnique],
    view: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[sf.V3, caspar.ConstIndexed],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured corner, in pixels."""
    seen = view * point
    plane = sf.V2(seen[0] / seen[2], seen[1] / seen[2])
    square = plane.squared_norm()
    focal, x, y, k1, k2 = lens
    return focal * (1 + k1 * square + k2 * square**2) * plane + sf.V2(x, y) - pixel


def project(lens: Rows, views: Rows, view: Index, point: Index) -> Rows:
    """(n, 2) pixels of corners."""
    seen = Rotation.from_quat(views[view, :4]).apply(BOARD[point]) + views[view, 4:]
    plane = seen[:, :2] / seen[:, 2:]
    square = (plane**2).sum(axis=1, keepdims=True)
    scale = lens[0, 0] * (1 + lens[0, 3] * square + lens[0, 4] * square**2)
    return np.asarray(scale * plane + lens[0, 1:3])


def pictures(tilt: float, rng: np.random.Generator) -> dict[str, Any]:
    """Four pictures of a board that is tilted by an angle (radians), each to another side."""
    turns = [[np.cos(k * np.pi / 2), np.sin(k * np.pi / 2), 0.0] for k in range(NUM_VIEWS)]
    rotations = Rotation.from_rotvec(tilt * np.array(turns)).as_quat()
    views = np.concatenate([rotations, np.tile([0.0, 0.0, 0.6], (NUM_VIEWS, 1))], axis=1)
    view = np.repeat(np.arange(NUM_VIEWS), len(BOARD))
    point = np.tile(np.arange(len(BOARD)), NUM_VIEWS)
    pixel = project(TRUE_LENS, views, view, point)
    pixel = pixel + 0.1 * rng.normal(size=pixel.shape)
    given = {"view": view, "point": {"values": BOARD, "index": point}, "pixel": pixel}
    return {"Lens": TRUE_LENS, "Pose3": views, "corner": given}


# %% [markdown]
# ## The derivative of a calibration
#
# The focal length is a function of the measured corners: a solve. JAX derives it as any other
# function, and compiles around it.


# %%
@dataclass(frozen=True)
class Slope:
    """How the focal length follows the corners of pictures with a tilt.

    Attributes:
        focal: Focal length, in pixels.
        pixels: (n, 2) corners.
        slope: (n, 2) derivatives of the focal length by them.
    """

    focal: float
    pixels: Rows
    slope: Rows

    @property
    def error(self) -> float:
        """Standard deviation of the focal length if corners have one pixel of noise."""
        return float(np.linalg.norm(self.slope))


def derived(solver: caspar.Solver, arrays: dict[str, Any]) -> Slope:
    """The focal length, and its derivative by all corners."""
    pixels = arrays["corner"]["pixel"]
    if jax is None:
        result = solver.solve(arrays)
        gradient = solver.gradient(result, {"Lens": np.eye(5)[:1]})
        return Slope(result.values["Lens"][0, 0], pixels, gradient["corner"]["pixel"])

    def focal(pixel: Any) -> Any:
        given = {**arrays, "corner": {**arrays["corner"], "pixel": pixel}}
        return caspar.jax.solve(solver, given)["Lens"][0, 0]

    value, slope = jax.jit(jax.value_and_grad(focal))(pixels)
    return Slope(float(value), pixels, np.asarray(slope))


def main() -> dict[int, Slope]:
    """Compare tilts."""
    if jax is None:
        print("Derived without JAX, which is not installed (pip install jax)")
    else:
        jax.config.update("jax_enable_x64", True)
    solver = caspar.Solver([corner], backend="cpu")
    found = {}
    for degrees in TILTS:
        arrays = pictures(np.deg2rad(degrees), np.random.default_rng(0))
        one = found[degrees] = derived(solver, arrays)
        pull = np.linalg.norm(one.slope, axis=1).reshape(NUM_VIEWS, -1).sum(axis=0)
        far = np.abs(BOARD[pull.argmax(), :2]).max()
        print(
            f"tilted by {degrees:2d} degrees: focal length {one.focal:6.2f}, uncertain by "
            f"{one.error:5.2f} for each pixel of noise; a corner {far:.2f} m off the centre counts "
            "most"
        )
    return found


# %% tags=["active-ipynb"]
# found = main()

# %% [markdown]
# ## Which corners count
#
# An arrow says where to a corner would have to move for the focal length to grow, and how much it
# would: in the first picture, with the board hardly tilted and well tilted, in the same scale.


# %%
def draw(found: dict[int, Slope]) -> Figure:
    """The uncertainty by tilt; the derivative by each corner of a picture, for two tilts."""
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 3.6), layout="constrained")
    errors = [one.error for one in found.values()]
    axes[0].plot(list(found), errors, "o-")
    axes[0].set(xlabel="tilt, degrees", ylabel="focal length, pixels a pixel of noise")
    axes[0].set_ylim(bottom=0.0)
    for axis, degrees in zip(axes[1:], (TILTS[0], TILTS[2]), strict=True):
        one, own = found[degrees], slice(len(BOARD))
        x, y = one.pixels[own].T
        u, v = one.slope[own].T
        axis.plot(x, y, ".", color="0.7")
        axis.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=0.02, color="C1")
        axis.set(xlim=(0, 640), ylim=(480, 0), aspect="equal", title=f"tilted by {degrees} degrees")
    return figure


# %% tags=["active-ipynb"]
# draw(found);


# %% tags=["active-py"]
if __name__ == "__main__":
    main()
