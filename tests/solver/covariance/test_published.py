"""Standard errors that others publish: NIST's certified ones, OpenCV's, COLMAP's."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.regression.caspar_fit import CasparFit, Form
from benchmarks.regression.nist import problems
from benchmarks.regression.problem import Problem
from examples import calibration_errors

SHARED = Path(__file__).parents[3].parent / "shared"

FULL_DIGITS = "Lanczos1"
"""Its data fit the model to 13 digits: the sum of squares of the certified parameters, which have
eleven, is another one."""


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: problem.name)
@pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
def test_certified_standard_deviations(problem: Problem, form: Form) -> None:
    """All 27 data sets, at the certified parameters, to eight digits and more."""
    assert problem.certified is not None
    assert problem.standard_errors is not None
    fit = CasparFit(problem, form)
    parameters = np.array(problem.certified)
    if problem.name == FULL_DIGITS:
        num_left = len(problem.kinds[0].data) - len(parameters)
        found = np.sqrt(problem.minimum / num_left) * fit.covariance(
            parameters, scaled=False
        ).standard_errors("Parameters")
    else:
        found = fit.covariance(parameters).standard_errors("Parameters")
    assert_allclose(found[0], problem.standard_errors, rtol=1e-8)


def test_opencv_calibration() -> None:
    """All nine of the lens, and thirteen views, of OpenCV's own pictures.

    OpenCV's are at its own optimum, which has seven digits.
    """
    result, cov = calibration_errors.calibrate()
    published = np.load(calibration_errors.CORNERS)
    lens = cov.standard_errors("Lens")[0]
    assert_allclose(lens, published["intrinsics_std"][:9], rtol=2e-7)
    assert_allclose(result.values["Lens"][0], published["intrinsics"], rtol=1e-5)
    places = published["extrinsics_std"].reshape(13, 6)[:, 3:]
    assert_allclose(cov.standard_errors("Board")[:, 3:], places, rtol=2e-7)


# -- COLMAP ----------------------------------------------------------------------------------------


class Image(sf.Pose3):
    """Camera from world."""


class Point(sf.V3):
    """A place."""


@dataclass
class Lens:
    """COLMAP's SIMPLE_RADIAL, its principal point held."""

    focal: sf.Scalar
    k: sf.Scalar


@caspar.factor
def seen(
    image: Annotated[Image, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    lens: Annotated[Lens, caspar.TunableUnique],
    centre: Annotated[sf.V2, caspar.ConstUnique],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """The pixel of a place."""
    place = image * point
    x, y = place[0] / place[2], place[1] / place[2]
    scale = lens.focal * (1 + lens.k * (x * x + y * y))
    return sf.V2(scale * x, scale * y) + centre - pixel


def colmap_arrays(name: str) -> tuple[dict[str, Any], Any]:
    """A model of one camera from its text files, and what COLMAP holds for the gauge.

    That is the first pose, and of the second the translation that is longest along the baseline.
    """
    with tarfile.open(SHARED / f"data/colmap/{name}.tar.xz") as archive:

        def lines(file: str) -> list[list[str]]:
            member = archive.extractfile(f"{name}/{file}.txt")
            assert member is not None
            text = member.read().decode().splitlines()
            return [line.split() for line in text if not line.startswith("#")]

        (camera,), images, places = lines("cameras"), lines("images"), lines("points3D")
    focal, *centre, k = map(float, camera[4:])
    point_rank = {int(line[0]): number for number, line in enumerate(places)}
    order = np.argsort([int(line[0]) for line in images[::2]])
    poses = np.array([images[2 * number][1:8] for number in order], float)[:, [1, 2, 3, 0, 4, 5, 6]]
    points = np.array([line[1:4] for line in places], float)
    rows = []
    for image, number in enumerate(order):
        x_y_point = np.array(images[2 * number + 1], float).reshape(-1, 3)
        rows += [(image, point_rank[int(p)], x, y) for x, y, p in x_y_point if p >= 0]
    image, point = np.array([row[:2] for row in rows]).T
    turns = Rotation.from_quat(poses[:, :4])
    is_ahead = (turns[image].apply(points[point]) + poses[image, 4:])[:, 2] > 0.0
    baseline = poses[1, 4:] - (turns[1] * turns[0].inv()).apply(poses[0, 4:])
    held = np.zeros((len(poses), 6), bool)
    held[0] = held[1, 3 + np.abs(baseline).argmax()] = True
    arrays = {
        "Image": poses,
        "Point": points,
        "Lens": np.array([[focal, k]]),
        "seen": {
            "image": image[is_ahead],
            "point": point[is_ahead],
            "centre": np.array(centre),
            "pixel": np.array([row[2:] for row in rows])[is_ahead],
        },
    }
    return arrays, held


@pytest.mark.skipif(not SHARED.is_dir(), reason="models of COLMAP are not here")
def test_colmap() -> None:
    """Standard deviations of poses and the covariance of a lens, as pycolmap's Ceres finds them.

    Ceres turns a rotation from the left, by half of the angle.
    """
    arrays, held = colmap_arrays("crane_mast")
    published = json.loads((SHARED / "data/colmap/reference_covariance.json").read_text())
    wanted = published["crane_mast"]
    solver = caspar.Solver(seen, backend="cpu", precision="float64")
    result = solver.solve(arrays, fixed={"Image": held})
    assert_allclose(result.final_cost, wanted["cost"], rtol=1e-9)
    cov = solver.covariance(
        {**arrays, **result.values}, {"Image": "all", "Lens": "all"}, fixed={"Image": held}
    )
    assert_allclose(cov["Lens"][0], wanted["intrinsics_cov"], rtol=1e-6)
    chart = np.zeros((len(arrays["Image"]), 6, 6))
    chart[:, :3, :3] = Rotation.from_quat(result.values["Image"][:, :4]).as_matrix() / 2.0
    chart[:, 3:, 3:] = np.eye(3)
    blocks = chart @ cov["Image"] @ chart.transpose(0, 2, 1)
    for image, errors in wanted["pose_std_ceres_tangent"].items():
        number = int(image) - 1
        found = np.sqrt(blocks[number].diagonal())[~held[number]]
        assert_allclose(found, errors, rtol=1e-6)
