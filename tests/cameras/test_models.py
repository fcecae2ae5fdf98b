"""Camera models against COLMAP's, against formulas of their papers, and at their limits."""

from pathlib import Path

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.bundle_adjustment import Cam, Pixel, Point, snavely
from caspar.cameras import MODELS, MODELS_BY_ID, BehindCamera, CameraModel
from caspar.errors import InputError, OptionError
from tests.support_cameras import (
    CameraCase,
    differences,
    errors_of_jacobians,
    is_cancelled,
    residuals,
)

REFERENCE = np.load(Path(__file__).parents[1] / "data/camera_models.npz")
"""Written by `python -m benchmarks.camera_models --points 16 --write ...` with pycolmap 4.2.1."""

_ROWS = (
    *(6090.885260486202, 33466.507065932674, 53530.97685579598, -0.6466266341662557),
    *(0.0, 1.0, 0.0, 289258.3888308275),
    *(38276.94119754141, 182402.4124547855, 293393.29665112536, 0.0),
    *(-3.09864461261461, 0.0, 1.0, 1585371.2610492134),
)
_LENS = (481.54650823152986, 550.7634048317727, 336.32505597484646, 236.05675700484917)

NEARLY_DOUBLE = CameraCase(
    parameters=np.array([[*_LENS, 0.10087962364366879]]),
    points=np.array([[0.3487214046722516, 1.6710782463891605, -1.0844034130111027]]),
    pixels=np.array([[307.66025779905146, 155.71106917705305]]),
    values=np.array([[-282.71599963647225, -1626.2743693794557]]),
    jacobians=np.array(_ROWS).reshape(1, 2, 8),
)
"""A point, and what pycolmap 4.2.1 makes of it: the root is double but for 3e-5 of z squared."""

COLMAP_MODELS = list(MODELS_BY_ID.values())
INVERTIBLE = [model for model in MODELS.values() if model.inverse_formula is not None]
OTHERS = {
    "KANNALA_BRANDT": [500, 510, 320, 240, 0.1, -0.02, 0.003, -0.004],
    "MEI": [500, 510, 320, 240, 1.2, -0.1, 0.02, 0.003, -0.004],
    "DOUBLE_SPHERE": [500, 510, 320, 240, -0.2, 0.6],
}


def _name(model: CameraModel) -> str:
    return model.name


def _case(model: CameraModel) -> CameraCase:
    names = ("parameters", "points", "pixels", "values", "jacobians")
    return CameraCase(*(REFERENCE[f"{model.name}/{name}"] for name in names))


def _parameters(model: CameraModel) -> NDArray[np.float64]:
    if model.name in OTHERS:
        return np.array(OTHERS[model.name], dtype=np.float64)
    return np.asarray(_case(model).parameters[1])


def test_numbers_are_colmaps() -> None:
    assert sorted(MODELS_BY_ID) == list(range(18))


@pytest.mark.parametrize("model", MODELS.values(), ids=_name)
def test_parameters_have_one_role(model: CameraModel) -> None:
    roles = [*model.focal, *model.principal, *model.extra]
    assert roles == ([] if model.is_periodic else list(range(model.num_parameters)))
    names = [model.parameter_names[place] for place in model.principal]
    assert names == ([] if model.is_periodic else ["cx", "cy"])


@pytest.mark.parametrize("model", COLMAP_MODELS, ids=_name)
def test_residuals_and_jacobians_are_colmaps(model: CameraModel) -> None:
    case = _case(model)
    assert (case.points[:, 2] < 0).any()
    residual, jacobian = differences(model, case)
    assert residual < 1e-13
    assert jacobian < 1e-12


@pytest.mark.parametrize("model", COLMAP_MODELS, ids=_name)
def test_jacobians_are_those_of_sixty_digits(model: CameraModel) -> None:
    case = _case(model)
    is_seen = case.jacobians.any(axis=(1, 2)) & ~is_cancelled(model, case)
    own, _ = errors_of_jacobians(model, case, np.flatnonzero(is_seen).tolist())
    assert own < 1e-13


def test_of_a_nearly_double_root_colmaps_derivatives_are_rounded() -> None:
    """Of 100,000 drawn points, the one of which both differ by more than 1e-12."""
    model = MODELS["DIVISION"]
    own, colmaps = errors_of_jacobians(model, NEARLY_DOUBLE, [0])
    assert own < 1e-12
    assert 2e-12 < colmaps < 3e-12


@pytest.mark.parametrize("model", COLMAP_MODELS, ids=_name)
def test_arrays_agree_with_colmap(model: CameraModel) -> None:
    case = _case(model)
    pixels = model.project_points(case.parameters, case.points)
    found = model.pixel_differences(case.parameters, pixels - case.pixels)
    is_seen = case.values.any(axis=1)
    np.testing.assert_array_equal(np.isfinite(pixels).all(axis=1), is_seen)
    np.testing.assert_allclose(found[is_seen], case.values[is_seen], rtol=1e-10, atol=1e-10)


def test_other_models_follow_their_papers() -> None:
    x, y, z = point = np.array([0.4, -0.7, 0.3])
    length, radius = np.linalg.norm(point), np.hypot(0.4, 0.7)
    plane = {}
    angle = np.arctan2(radius, z)
    k1, k2, k3, k4 = OTHERS["KANNALA_BRANDT"][4:]
    distorted = angle + k1 * angle**3 + k2 * angle**5 + k3 * angle**7 + k4 * angle**9
    plane["KANNALA_BRANDT"] = distorted * np.array([x, y]) / radius
    xi, k1, k2, p1, p2 = OTHERS["MEI"][4:]
    u, v = x / (z + xi * length), y / (z + xi * length)
    square = u * u + v * v
    plane["MEI"] = (1 + k1 * square + k2 * square**2) * np.array([u, v]) + [
        2 * p1 * u * v + p2 * (square + 2 * u * u),
        p1 * (square + 2 * v * v) + 2 * p2 * u * v,
    ]
    xi, alpha = OTHERS["DOUBLE_SPHERE"][4:]
    second = np.sqrt(x * x + y * y + (xi * length + z) ** 2)
    depth = alpha * second + (1 - alpha) * (xi * length + z)
    plane["DOUBLE_SPHERE"] = np.array([x, y]) / depth
    for name, place in plane.items():
        expected = place * [500, 510] + [320, 240]
        found = MODELS[name].project_points(np.array(OTHERS[name], dtype=float), point[None])
        np.testing.assert_allclose(found[0], expected, rtol=1e-13)


@pytest.mark.parametrize("name", OTHERS)
def test_derivatives_of_other_models(name: str) -> None:
    model, parameters = MODELS[name], _parameters(MODELS[name])
    points = np.array([[0.4, -0.7, 0.3], [0.5, 0.2, -0.1]])
    given = np.concatenate([points, np.tile(parameters, (2, 1))], axis=1)
    found = residuals(model, given[:, 3:], given[:, :3], np.zeros((2, 2))).jacobians
    for column in range(given.shape[1]):
        step = 1e-6 * max(1.0, abs(given[0, column]))
        ends = [given + sign * step * np.eye(given.shape[1])[column] for sign in (1, -1)]
        upper, lower = (model.project_points(end[:, 3:], end[:, :3]) for end in ends)
        np.testing.assert_allclose(found[:, :, column], (upper - lower) / (2 * step), atol=1e-5)


@pytest.mark.parametrize("model", INVERTIBLE, ids=_name)
def test_unprojected_pixels_look_at_their_points(model: CameraModel) -> None:
    rng = np.random.default_rng(1)
    parameters = _parameters(model)
    for point in rng.normal(size=(20, 3)) * [1, 1, 0.2] + [0, 0, 1]:
        pixel = model.project_points(parameters, point[None])[0]
        if np.isnan(pixel).any():
            continue
        direction = model.unproject(sf.Matrix(parameters), sf.V2(*pixel)).to_numpy().ravel()
        direction = direction.astype(float) / np.linalg.norm(direction.astype(float))
        np.testing.assert_allclose(direction, point / np.linalg.norm(point), atol=1e-9)
        (other,) = model.unproject_points(parameters, pixel[None])
        np.testing.assert_allclose(other / np.linalg.norm(other), direction, atol=1e-14)


SPECIAL_POINTS = np.array(
    [
        *([0, 0, 1], [0, 0, -1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0.3, 0.2, 0]),
        *([0.3, 0.2, -1], [1e-9, 0, 1], [0, 1e-200, 1], [0, 0, 2.0**-52], [5, 5, 1e-3]),
    ],
    dtype=float,
)


@pytest.mark.parametrize("model", MODELS.values(), ids=_name)
def test_derivatives_are_finite_everywhere(model: CameraModel) -> None:
    parameters = np.tile(_parameters(model), (len(SPECIAL_POINTS), 1))
    pixels = np.full((len(SPECIAL_POINTS), 2), 100.0)
    found = residuals(model, parameters, SPECIAL_POINTS, pixels)
    assert np.isfinite(found.values).all()
    assert np.isfinite(found.jacobians).all()
    pixels = model.project_points(parameters, SPECIAL_POINTS)
    is_hidden = np.isnan(pixels[:, 0])
    assert is_hidden[2]  # the centre of the camera has no pixel
    assert not is_hidden[0]  # a point on the axis has
    assert not found.values[is_hidden].any()
    assert not found.jacobians[is_hidden].any()


def test_rule_of_bundle_adjustment_in_the_large() -> None:
    """Its camera is RADIAL after half a turn about x: it looks along the negative z axis."""
    points = np.array([[0.3, -0.2, 2.0], [0.3, -0.2, -2.0]])
    parameters = np.tile([500, 0, 0, 0.1, -0.02], (2, 1))
    pixels = np.array([[3.0, -4.0]] * 2)
    found = residuals(MODELS["RADIAL"], parameters, points, pixels, BehindCamera.PROJECT)
    for point, pixel, value in zip(points, pixels, found.values, strict=True):
        camera = Cam(sf.Pose3.identity(), sf.V3(500, 0.1, -0.02))
        turned = snavely(camera, Point(point * [1, -1, -1]), Pixel(pixel * [1, -1]))
        expected = turned.to_numpy().astype(float).ravel() * [1, -1]
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_wrong_arguments() -> None:
    model = MODELS["OPENCV"]
    with pytest.raises(OptionError, match="behind='clamp': it must be one of 'zero', 'project'"):
        model.residual(sf.V8(), sf.V3(), sf.V2(), behind="clamp")
    with pytest.raises(InputError, match="OPENCV has no closed inverse"):
        model.unproject(sf.V8(), sf.V2())
    with pytest.raises(InputError, match=r"OPENCV, parameters: shape \(7,\); it must be \(8,\)"):
        model.project_points(np.zeros(7), np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"points: shape \(3,\); it must be \(n, 3\)"):
        model.project_points(np.zeros(8), np.zeros(3))
