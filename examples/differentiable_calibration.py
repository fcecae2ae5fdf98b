"""Where to hold a chessboard: a calibration of a camera, derived by JAX.

Pictures of a board determine a lens. How well depends on how the board is tilted. The lens that a
calibration finds follows each measured corner; how strongly, says its derivative through the
solve. The length of that derivative is what noise of one pixel makes of the focal length: here it
is compared for tilts, and the corners that matter most are found.

python examples/differentiable_calibration.py
"""

import sys
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

try:
    import jax  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    sys.exit("This example needs JAX: pip install jax")

Rows = NDArray[np.float64]
Index = NDArray[np.integer[Any]]

NUM_VIEWS = 4
BOARD = 0.04 * np.array([[x, y, 0.0] for x in range(-4, 5) for y in range(-3, 4)])
TRUE_LENS = np.array([[800.0, 320.0, 240.0, -0.2, 0.05]])


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


def main() -> dict[str, float]:
    """Compare tilts; by each, what noise of a pixel makes of the focal length."""
    jax.config.update("jax_enable_x64", True)
    solver = caspar.Solver([corner], backend="cpu")
    errors = {}
    for degrees in (10, 20, 30, 45):
        arrays = pictures(np.deg2rad(degrees), np.random.default_rng(0))

        def focal(pixel: Any, arrays: dict[str, Any] = arrays) -> Any:
            given = {**arrays, "corner": {**arrays["corner"], "pixel": pixel}}
            return caspar.jax.solve(solver, given)["Lens"][0, 0]

        value, slope = jax.jit(jax.value_and_grad(focal))(arrays["corner"]["pixel"])
        errors[f"{degrees} degrees"] = float(np.linalg.norm(slope))
        pull = np.linalg.norm(np.asarray(slope), axis=1).reshape(NUM_VIEWS, -1).sum(axis=0)
        far = np.abs(BOARD[pull.argmax(), :2]).max()
        print(
            f"tilted by {degrees:2d} degrees: focal length {float(value):6.2f}, uncertain by "
            f"{np.linalg.norm(slope):6.2f} for each pixel of noise; a corner {far:.2f} m from the "
            "centre counts most"
        )
    return errors


if __name__ == "__main__":
    main()
