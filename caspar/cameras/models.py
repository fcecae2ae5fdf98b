"""All camera models by name, and those of COLMAP by their number in its files.

`MODELS` is the table; see `CameraModel`. KANNALA_BRANDT is OPENCV_FISHEYE for any field of view,
with the angle atan2(r, z) where COLMAP takes atan(r / z); MEI and DOUBLE_SPHERE are the models of
that name in robotics' calibration toolboxes (Kalibr's omni-radtan and ds).
"""

import math as constants
from collections.abc import Sequence
from typing import Any

from caspar.cameras import distortions, projections
from caspar.cameras.arithmetic import Arithmetic
from caspar.cameras.camera_model import CameraModel, Formula, InverseFormula
from caspar.cameras.projections import Projection, Unprojection, fisheye, perspective, wide_fisheye


def _camera(
    name: str,
    model_id: int | None,
    parameters: str,
    projection: Projection,
    unprojection: Unprojection | None = None,
) -> CameraModel:
    names = tuple(parameters.split())
    num_focal = names.index("cx")
    return CameraModel(
        name=name,
        model_id=model_id,
        parameter_names=names,
        focal=tuple(range(num_focal)),
        principal=(num_focal, num_focal + 1),
        extra=tuple(range(num_focal + 2, len(names))),
        is_periodic=False,
        formula=_with_intrinsics(projection, num_focal),
        inverse_formula=(
            None if unprojection is None else _without_intrinsics(unprojection, num_focal)
        ),
    )


def _with_intrinsics(projection: Projection, num_focal: int) -> Formula:
    def formula(
        math: Arithmetic, parameters: Sequence[Any], x: Any, y: Any, z: Any
    ) -> tuple[Any, Any, Any]:
        fx, fy = parameters[0], parameters[num_focal - 1]
        cx, cy, *extra = parameters[num_focal:]
        u, v, clearance = projection(math, extra, x, y, z)
        return fx * u + cx, fy * v + cy, clearance

    return formula


def _without_intrinsics(unprojection: Unprojection, num_focal: int) -> InverseFormula:
    def formula(
        math: Arithmetic, parameters: Sequence[Any], x: Any, y: Any
    ) -> tuple[Any, Any, Any]:
        fx, fy = parameters[0], parameters[num_focal - 1]
        cx, cy, *extra = parameters[num_focal:]
        return unprojection(math, extra, (x - cx) / fx, (y - cy) / fy)

    return formula


def _equirectangular(
    math: Arithmetic, parameters: Sequence[Any], x: Any, y: Any, z: Any
) -> tuple[Any, Any, Any]:
    """Azimuth and elevation as parts of the image; the poles have no pixel, as it is no one."""
    width, height = parameters
    horizontal = math.sqrt(x * x + z * z)
    pixel_x = (math.atan2(x, z) / (2 * constants.pi) + 0.5) * width
    pixel_y = (0.5 - math.atan2(-y, horizontal) / constants.pi) * height
    return pixel_x, pixel_y, horizontal - projections.EPSILON


def _from_equirectangular(
    math: Arithmetic, parameters: Sequence[Any], x: Any, y: Any
) -> tuple[Any, Any, Any]:
    width, height = parameters
    azimuth = 2 * constants.pi * (x / width - 0.5)
    elevation = constants.pi * (0.5 - y / height)
    horizontal = math.cos(elevation)
    return horizontal * math.sin(azimuth), -math.sin(elevation), horizontal * math.cos(azimuth)


_EQUIRECTANGULAR = CameraModel(
    name="EQUIRECTANGULAR",
    model_id=17,
    parameter_names=("w", "h"),
    focal=(),
    principal=(),
    extra=(),
    is_periodic=True,
    formula=_equirectangular,
    inverse_formula=_from_equirectangular,
)

_PLAIN = distortions.undistorted
_POLYNOMIAL = distortions.polynomial
_TO_PLANE = projections.from_perspective
_TO_FISHEYE = projections.from_fisheye
_THIN_PRISM = "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1"
_ARIA = "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3"

_ALL = (
    _camera("SIMPLE_PINHOLE", 0, "f cx cy", perspective(_PLAIN), _TO_PLANE),
    _camera("PINHOLE", 1, "fx fy cx cy", perspective(_PLAIN), _TO_PLANE),
    _camera("SIMPLE_RADIAL", 2, "f cx cy k", perspective(_POLYNOMIAL)),
    _camera("RADIAL", 3, "f cx cy k1 k2", perspective(_POLYNOMIAL)),
    _camera("OPENCV", 4, "fx fy cx cy k1 k2 p1 p2", perspective(distortions.radial_tangential)),
    _camera("OPENCV_FISHEYE", 5, "fx fy cx cy k1 k2 k3 k4", fisheye(_POLYNOMIAL)),
    _camera(
        "FULL_OPENCV", 6, "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6", perspective(distortions.rational)
    ),
    _camera(
        "FOV",
        7,
        "fx fy cx cy omega",
        perspective(distortions.field_of_view),
        projections.from_field_of_view,
    ),
    _camera("SIMPLE_RADIAL_FISHEYE", 8, "f cx cy k", fisheye(_POLYNOMIAL)),
    _camera("RADIAL_FISHEYE", 9, "f cx cy k1 k2", fisheye(_POLYNOMIAL)),
    _camera("THIN_PRISM_FISHEYE", 10, _THIN_PRISM, fisheye(distortions.thin_prism)),
    _camera("RAD_TAN_THIN_PRISM_FISHEYE", 11, _ARIA, fisheye(distortions.aria)),
    _camera("SIMPLE_DIVISION", 12, "f cx cy k", projections.division, projections.from_division),
    _camera("DIVISION", 13, "fx fy cx cy k", projections.division, projections.from_division),
    _camera("SIMPLE_FISHEYE", 14, "f cx cy", fisheye(_PLAIN), _TO_FISHEYE),
    _camera("FISHEYE", 15, "fx fy cx cy", fisheye(_PLAIN), _TO_FISHEYE),
    _camera(
        "EUCM",
        16,
        "fx fy cx cy alpha beta",
        projections.enhanced_unified,
        projections.from_enhanced_unified,
    ),
    _EQUIRECTANGULAR,
    _camera("KANNALA_BRANDT", None, "fx fy cx cy k1 k2 k3 k4", wide_fisheye(_POLYNOMIAL)),
    _camera("MEI", None, "fx fy cx cy xi k1 k2 p1 p2", projections.unified),
    _camera(
        "DOUBLE_SPHERE",
        None,
        "fx fy cx cy xi alpha",
        projections.double_sphere,
        projections.from_double_sphere,
    ),
)

MODELS: dict[str, CameraModel] = {model.name: model for model in _ALL}
"""Every camera model by its name."""

MODELS_BY_ID: dict[int, CameraModel] = {
    model.model_id: model for model in _ALL if model.model_id is not None
}
"""COLMAP's camera models by the number in its files."""
