"""A COLMAP model, adjusted as COLMAP does, then by a factor with one of its camera models.

The second part takes the model's arrays to a solver of one's own: the place to add other residuals.
"""

import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import symforce.symbolic as sf

import caspar

MODEL = Path(__file__).parents[1] / "data" / "crane_mast.tar.xz"
CAMERA = caspar.cameras.MODELS["SIMPLE_RADIAL"]


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


def main() -> caspar.SolveResult:
    """Adjust the model twice."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(MODEL) as archive:
            archive.extractall(folder, filter="data")
        model = caspar.colmap.read_model(f"{folder}/crane_mast")
    summary = caspar.colmap.bundle_adjustment(model)
    print(f"{summary.brief_report()}\n")

    images, points = summary.model.images, summary.model.points
    is_seen = images.point_ids != caspar.colmap.NO_POINT
    image_rows = np.repeat(np.arange(len(images.ids)), np.diff(images.offsets))
    row_of_point = {point_id: row for row, point_id in enumerate(points.ids.tolist())}
    arrays = {
        "Pose3": images.cam_from_world[:, [1, 2, 3, 0, 4, 5, 6]],  # from qw first to qw last
        "Matrix41": summary.model.cameras.parameters[None],
        "Point": points.xyz,
        "reprojection": {
            "cam_from_world": image_rows[is_seen],
            "point": [row_of_point[point_id] for point_id in images.point_ids[is_seen].tolist()],
            "pixel": images.keypoints[is_seen],
        },
    }
    result = caspar.Solver([reprojection], precision="float64").solve(arrays)
    print(result)
    return result


if __name__ == "__main__":
    main()
