"""Camera models beside COLMAP's: residuals and Jacobians on drawn points.

    python -m benchmarks.camera_models --points 100000
    python -m benchmarks.camera_models --points 16 --write tests/data/camera_models.npz

Needs pycolmap (values in the repository: 4.2.1) and pyceres. Of each of COLMAP's 18 models:
parameters within 10 % of nominal ones, points to both sides of the camera, 9 % of them close to the
axis, one pixel each. Prints the greatest differences: of residuals relative to the pixels' size, of
Jacobians relative to the greatest entry of their row. Points behind a camera, and beside what a
model can project, have neither on both sides. Division models where z and the root cancel, which
COLMAP rounds too, are left out. Of the points whose Jacobians differ most, those of both are
compared with arithmetic of 60 digits. `--write` keeps COLMAP's values for
`tests/cameras/test_models.py`, which needs no pycolmap.
"""

import argparse
from pathlib import Path

import numpy as np
import pyceres  # noqa: F401  has the type of what pycolmap's cost functions return
import pycolmap
import pycolmap.cost_functions
from numpy.typing import NDArray

from benchmarks.page import table
from caspar.cameras import MODELS, CameraModel
from tests.support_cameras import CameraCase, errors_of_jacobians, pointwise_differences

NOMINAL = {
    "k": 0.1,
    "k0": 0.1,
    "k1": 0.1,
    "k2": -0.02,
    "k3": 0.003,
    "k4": 0.004,
    "k5": 0.002,
    "k6": 0.001,
    "p0": 0.003,
    "p1": 0.003,
    "p2": -0.004,
    "sx1": 0.002,
    "sy1": -0.003,
    "s0": 0.002,
    "s1": -0.003,
    "s2": 0.001,
    "s3": -0.002,
    "omega": 0.8,
    "alpha": 0.6,
    "beta": 1.1,
    "f": 500.0,
    "fx": 500.0,
    "fy": 510.0,
    "cx": 320.0,
    "cy": 240.0,
    "w": 1000.0,
    "h": 500.0,
}

NUM_EXACT = 200
"""Points of each model that are compared with arithmetic of 60 digits."""


def main() -> None:
    """Compare, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--folder", type=Path, help="where `camera_models.md` is written")
    request = parser.parse_args()
    rng = np.random.default_rng(37)
    kept: dict[str, NDArray[np.float64]] = {}
    rows = []
    for model in MODELS.values():
        if model.model_id is None:
            continue
        case = drawn_case(model, rng, request.points)
        residual, jacobian = pointwise_differences(model, case)
        worst = np.argsort(-jacobian)[:NUM_EXACT]
        own, their = errors_of_jacobians(model, case, worst[jacobian[worst] > 0].tolist())
        num_behind = int(np.count_nonzero(~case.jacobians.any(axis=(1, 2))))
        found = (residual.max(), jacobian.max(), own, their)
        rows.append([model.name, f"{num_behind:,}", *(f"{one:.1e}" for one in found)])
        print("  ".join(rows[-1]), flush=True)
        kept |= {f"{model.name}/{name}": array for name, array in vars(case).items()}
    if request.folder is not None:
        headings = ["model", "points without a pixel", "residual", "Jacobian"]
        headings += ["error of caspar's Jacobian", "of COLMAP's"]
        assert __doc__ is not None
        about = __doc__.split("\n\n")[2]
        page = (
            f"# Camera models beside COLMAP's\n\n{request.points:,} points of each model, pycolmap "
        )
        page += f"{pycolmap.__version__}.\n\n{about}\n\n{table(headings, rows)}"
        request.folder.mkdir(parents=True, exist_ok=True)
        (request.folder / "camera_models.md").write_text(page)
    if request.write is not None:
        np.savez_compressed(request.write, allow_pickle=False, **kept)


def drawn_case(model: CameraModel, rng: np.random.Generator, num_points: int) -> CameraCase:
    """Draw arguments, and let COLMAP evaluate them."""
    nominal = np.array([NOMINAL[name] for name in model.parameter_names])
    parameters = nominal * (1 + 0.1 * rng.uniform(-1, 1, (num_points, len(nominal))))
    if model.name == "FOV":  # COLMAP's series of a small omega
        parameters[::7, 4] = rng.uniform(1e-4, 9e-3, len(parameters[::7]))
    points = rng.normal(size=(num_points, 3))
    points[:, 2] = rng.uniform(0.2, 3, num_points)
    points[2::5, 2] *= -1
    points[::11, :2] *= 1e-3
    pixels = np.array([320, 240]) + 200 * rng.normal(size=(num_points, 2))
    values = np.empty((num_points, 2))
    jacobians = np.empty((num_points, 2, 3 + len(nominal)))
    identity = np.array([0, 0, 0, 1, 0, 0, 0.0])
    model_id = getattr(pycolmap.CameraModelId, model.name)
    for row in range(num_points):
        cost = pycolmap.cost_functions.ReprojErrorCost(model_id, pixels[row])
        value, (by_point, _, by_parameters) = cost.evaluate(points[row], identity, parameters[row])
        values[row] = value.ravel()
        jacobians[row, :, :3], jacobians[row, :, 3:] = by_point, by_parameters
    return CameraCase(parameters, points, pixels, values, jacobians)


if __name__ == "__main__":
    main()
