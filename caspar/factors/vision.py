"""Factors of pictures: reprojection of points and lines, inverse depth, stereo, homographies.

Each function returns a `caspar.Factor`. Poses are `cam_from_world` as in COLMAP; where a node holds
`world_from_cam`, pass `part(Pose, lambda pose: pose.inverse())`. Camera axes: x to the right, y
down, z forward. Residuals and noise are in pixels. A line in space is a `Line`, four degrees of
freedom.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from symforce.ops import StorageOps

from caspar.cameras import MODELS, BehindCamera, CameraModel
from caspar.errors import FactorError, InputError, OptionError
from caspar.factors.making import (
    Argument,
    Choices,
    Markers,
    NodeChoice,
    Part,
    check_kind,
    common,
    each,
    kind_of,
    library,
    make_factor,
    node,
)
from caspar.factors.whitening import NoiseChoice, vector_type
from caspar.frontend.factors.factor import Factor

CameraChoice: TypeAlias = str | CameraModel
"""A camera model, or its name in `caspar.cameras.MODELS`."""

BehindChoice: TypeAlias = BehindCamera | Literal["zero", "project"]


@library
def reprojection(
    camera: CameraChoice,
    pose: NodeChoice = sf.Pose3,
    point: NodeChoice = sf.V3,
    *,
    lens: NodeChoice | None = None,
    rig: NodeChoice | None = None,
    behind: BehindChoice = "zero",
    noise: NoiseChoice = "sigma",
    name: str = "reprojection",
    markers: Markers | None = None,
) -> Factor:
    """A camera sees a point at a pixel: projection(lens, cam_from_world(point)) - pixel.

    Arguments of the factor: `cam_from_world` and `point`, nodes; `pixel`, (m, 2); `lens`, the
    camera's parameters in the order of its `parameter_names`: a constant for all instances,
    (num_parameters,), or a node if `lens` is given. With `rig`, `cam_from_world` becomes
    `rig_from_world`, and `cam_from_rig` is another node; `markers={"cam_from_rig":
    caspar.ConstIndexed}` makes known sensor poses of it.

    Args:
        camera: A camera model, or its name in `caspar.cameras.MODELS`.
        pose: Node type, or a part of one: an `sf.Pose3`.
        point: Node type, or a part of one: a point in world coordinates.
        lens: Node type, or a part of one, whose numbers are the camera's parameters.
        rig: Node type, or a part of one: the pose of a camera in its rig, an `sf.Pose3`.
        behind: `zero` or `project`, see `caspar.cameras.BehindCamera`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown camera model, rule or noise.

    Example:
        >>> import caspar
        >>> solver = caspar.Solver(caspar.factors.reprojection("SIMPLE_PINHOLE", noise="unit"))
        >>> seen = {"cam_from_world": [0], "point": [0], "pixel": [[350.0, 250.0]],
        ...         "lens": [500.0, 320.0, 240.0]}  # focal length, principal point
        >>> pose = [0, 0, 0, 1, 0, 0, 4.0]  # qx qy qz qw tx ty tz
        >>> arrays = {"Pose3": [pose], "Matrix31": [[0.2, 0.2, 1.0]], "reprojection": seen}
        >>> solver.evaluate(arrays).residuals("reprojection").round(3)
        array([[-10.,  10.]])
    """
    model = _camera("reprojection", camera)
    check_kind("reprojection", "pose", pose, (sf.Pose3,))
    check_kind("reprojection", "point", point, (sf.V3,))
    poses = [node("cam_from_world", pose)]
    if rig is not None:
        check_kind("reprojection", "rig", rig, (sf.Pose3,))
        poses = [node("rig_from_world", pose), node("cam_from_rig", rig)]

    def error(point: Any, lens: Any, pixel: Any, **poses: Any) -> list[Any]:
        """Projected minus measured pixel."""
        for one in poses.values():  # from the world inwards
            point = one * point
        return list(model.residual(_parameters(lens), point, pixel, behind))

    arguments = (
        *poses,
        node("point", point),
        _lens_of("reprojection", model.num_parameters, " ".join(model.parameter_names), lens),
        each("pixel", sf.V2),
    )
    return make_factor(error, 2, arguments, Choices(name, noise, markers))


@library
def inverse_depth_reprojection(
    camera: CameraChoice,
    pose: NodeChoice = sf.Pose3,
    inverse_depth: NodeChoice = sf.V1,
    *,
    lens: NodeChoice | None = None,
    behind: BehindChoice = "zero",
    noise: NoiseChoice = "sigma",
    name: str = "inverse_depth_reprojection",
    markers: Markers | None = None,
) -> Factor:
    """A camera sees a point of which only the inverse depth in another picture is unknown.

    The point is `direction` / `inverse_depth` in the axes of its anchor, the picture in which it
    was first seen (Civera, Davison, Montiel, 2008; Qin, Li, Shen, VINS-Mono, 2018). The residual is
    that of `reprojection` of inverse_depth * point, which every camera sees at the same pixel: it
    has a limit for points at infinity, whose inverse depth is zero.

    Arguments of the factor: `anchor_from_world`, `cam_from_world` and `inverse_depth`, nodes;
    `direction`, (m, 3), in the anchor's axes, for depths along z with z = 1; `pixel`, (m, 2);
    `lens` as in `reprojection`.

    Args:
        camera: A camera model, or its name in `caspar.cameras.MODELS`.
        pose: Node type, or a part of one: an `sf.Pose3`.
        inverse_depth: Node type, or a part of one: an `sf.V1`, one over a length.
        lens: Node type, or a part of one, whose numbers are the camera's parameters.
        behind: `zero` or `project`, see `caspar.cameras.BehindCamera`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown camera model, rule or noise.
    """
    where = "inverse_depth_reprojection"
    model = _camera(where, camera)
    check_kind(where, "pose", pose, (sf.Pose3,))
    check_kind(where, "inverse_depth", inverse_depth, (sf.V1,))

    def error(inverse_depth: Any, lens: Any, direction: Any, pixel: Any, **poses: Any) -> list[Any]:
        """Projected minus measured pixel."""
        cam_from_anchor = poses["cam_from_world"] * poses["anchor_from_world"].inverse()
        point = cam_from_anchor.R * direction + cam_from_anchor.t * inverse_depth[0]
        return list(model.residual(_parameters(lens), point, pixel, behind))

    arguments = (
        node("anchor_from_world", pose),
        node("cam_from_world", pose),
        node("inverse_depth", inverse_depth),
        _lens_of(where, model.num_parameters, " ".join(model.parameter_names), lens),
        each("direction", sf.V3),
        each("pixel", sf.V2),
    )
    return make_factor(error, 2, arguments, Choices(name, noise, markers))


@library
def stereo(
    pose: NodeChoice = sf.Pose3,
    point: NodeChoice = sf.V3,
    *,
    lens: NodeChoice | None = None,
    behind: BehindChoice = "zero",
    noise: NoiseChoice = "sigma",
    name: str = "stereo",
    markers: Markers | None = None,
) -> Factor:
    """A rectified pair of cameras sees a point: (u_left, u_right, v) minus the measured ones.

    u_left = fx x / z + cx, u_right = fx (x - baseline) / z + cx, v = fy y / z + cy, where x, y, z
    are in the axes of the left camera.

    Arguments of the factor: `cam_from_world` (the left camera) and `point`, nodes; `pixel`, (m, 3),
    in the order u_left, u_right, v; `lens`, fx fy cx cy in pixels and the baseline in the unit of
    the points: a constant for all instances, (5,), or a node if `lens` is given.

    Args:
        pose: Node type, or a part of one: an `sf.Pose3`.
        point: Node type, or a part of one: a point in world coordinates.
        lens: Node type, or a part of one, of five numbers.
        behind: `zero`: a point that is not in front of the cameras has no residual and no
            derivative. `project`: the formula is used as it is.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown rule or noise.
    """
    check_kind("stereo", "pose", pose, (sf.Pose3,))
    check_kind("stereo", "point", point, (sf.V3,))
    pinhole = MODELS["PINHOLE"]
    lens_is = _lens_of("stereo", 5, "fx fy cx cy baseline", lens)

    def error(cam_from_world: Any, point: Any, lens: Any, pixel: Any) -> list[Any]:
        """Projected minus measured pixels."""
        *one, baseline = _parameters(lens)
        left = cam_from_world * point
        right = left - sf.V3(baseline, 0, 0)
        u_left, v = pinhole.residual(one, left, sf.V2(pixel[0], pixel[2]), behind)
        u_right, _ = pinhole.residual(one, right, sf.V2(pixel[1], pixel[2]), behind)
        return [u_left, u_right, v]

    arguments = (node("cam_from_world", pose), node("point", point), lens_is, each("pixel", sf.V3))
    return make_factor(error, 3, arguments, Choices(name, noise, markers))


def _camera(factor: str, camera: CameraChoice) -> CameraModel:
    if isinstance(camera, CameraModel):
        return camera
    if camera not in MODELS:
        raise OptionError(
            f"caspar.factors.{factor}, camera={camera!r}: there is no such model in "
            f"caspar.cameras.MODELS; the models are {', '.join(MODELS)}"
        )
    return MODELS[camera]


def _parameters(lens: Any) -> list[Any]:
    """The numbers of a lens of any type, in storage order."""
    return list(StorageOps.to_storage(lens))


def _lens_of(factor: str, size: int, names: str, lens: NodeChoice | None) -> Argument:
    if lens is None:
        return common("lens", vector_type(size))
    found = StorageOps.storage_dim(kind_of(lens) if isinstance(lens, Part) else lens)
    if found != size:
        raise FactorError(
            f"caspar.factors.{factor}, argument lens: it holds {found} numbers; it must hold "
            f"{size}: {names}"
        )
    return node("lens", lens)


@dataclass
class Line:
    """A line in space; in storage qx qy qz qw, then cos sin.

    The orthonormal representation of Bartoli and Sturm (*Structure-from-motion using lines*, CVIU
    2005): with Pluecker coordinates (n, v), n = x cross v for every point x of the line, the
    columns of `axes` are n / |n|, v / |v| and their cross product, and `distance` has cosine and
    sine in the ratio |n| : |v|. `lines_through` makes the storage.

    Attributes:
        axes: Normal of the plane through the origin, direction of the line, and across both.
        distance: Its cotangent is the line's distance from the origin.
    """

    axes: sf.Rot3
    distance: sf.Rot2

    def pluecker(self) -> tuple[Any, Any]:
        """Moment n and direction v, up to a common factor."""
        matrix = self.axes.to_rotation_matrix()
        cosine, sine = self.distance.to_storage()
        return sf.V3(*matrix[:, 0]) * cosine, sf.V3(*matrix[:, 1]) * sine


@library
def line_reprojection(
    pose: NodeChoice = sf.Pose3,
    line: NodeChoice = Line,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "line_reprojection",
    markers: Markers | None = None,
) -> Factor:
    """A pinhole camera sees a line: distances of a segment's ends from the projected line.

    The ends need not be those seen in other pictures. Rows: signed distances in pixels of both
    ends. Where the line passes through the camera's centre, the residual is zero.

    Arguments of the factor: `cam_from_world` and `line`, nodes; `segment`, (m, 4), u v of both
    ends; `lens`, (4,), fx fy cx cy in pixels, one for all instances.

    Args:
        pose: Node type, or a part of one: an `sf.Pose3`.
        line: Node type, or a part of one: a `Line`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("line_reprojection", "pose", pose, (sf.Pose3,))
    check_kind("line_reprojection", "line", line, (Line,))

    def error(cam_from_world: Any, line: Any, segment: Any, lens: Any) -> list[Any]:
        """Distances of the segment's ends."""
        moment, direction = line.pluecker()
        turned = cam_from_world.R * direction
        normal = cam_from_world.R * moment + cam_from_world.t.cross(turned)
        fx, fy, cx, cy = lens
        a, b = normal[0] / fx, normal[1] / fy
        c = normal[2] - a * cx - b * cy
        size = sf.sqrt(a**2 + b**2 + sf.epsilon() ** 2)
        return [(a * segment[i] + b * segment[i + 1] + c) / size for i in (0, 2)]

    arguments = (
        node("cam_from_world", pose),
        node("line", line),
        each("segment", sf.V4),
        common("lens", sf.V4),
    )
    return make_factor(error, 2, arguments, Choices(name, noise, markers))


@library
def homography(
    b_from_a: NodeChoice = sf.V8,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "homography",
    markers: Markers | None = None,
) -> Factor:
    """A plane seen in two pictures: H(pixel_a) - pixel_b, in pixels.

    H is [[h0, h1, h2], [h3, h4, h5], [h6, h7, 1]] (Hartley and Zisserman, section 4.2.2: transfer
    error in one picture). For both directions use two factors.

    Arguments of the factor: `b_from_a`, a node; `pixel_a` and `pixel_b`, (m, 2). Pixels minus the
    centre of the picture, divided by its width, take fewer iterations.

    Args:
        b_from_a: Node type, or a part of one: eight numbers, row by row.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that does not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("homography", "b_from_a", b_from_a, (sf.V8,))

    def error(b_from_a: Any, pixel_a: Any, pixel_b: Any) -> list[Any]:
        """Transferred minus measured pixel."""
        rows = sf.M33(*b_from_a, 1)
        x, y, w = rows * sf.V3(pixel_a[0], pixel_a[1], 1)
        safe = w + sf.epsilon() * sf.sign_no_zero(w)
        return [x / safe - pixel_b[0], y / safe - pixel_b[1]]

    arguments = (node("b_from_a", b_from_a), each("pixel_a", sf.V2), each("pixel_b", sf.V2))
    return make_factor(error, 2, arguments, Choices(name, noise, markers))


def lines_through(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lines through pairs of points, as `Line` stores them.

    Args:
        start: (n, 3) points.
        end: (n, 3) other points of the same lines.

    Returns:
        (n, 6).

    Raises:
        InputError: Two points are the same.
    """
    start, end = np.asarray(start, np.float64), np.asarray(end, np.float64)
    direction = end - start
    sizes = np.linalg.norm(direction, axis=1)
    if not np.all(sizes > 0.0):
        raise InputError(
            f"lines_through: points {int(np.argmin(sizes))} are the same; a line needs two"
        )
    direction /= sizes[:, None]
    moment = np.cross(start, direction)
    distance = np.linalg.norm(moment, axis=1)
    # of a line through the origin any direction across it is a normal
    spare = np.eye(3)[np.argmin(abs(direction), axis=1)]
    across = np.cross(spare, direction)
    through = distance <= 1e-12 * (1.0 + np.linalg.norm(start, axis=1))
    normal = np.where(through[:, None], across, moment)
    normal /= np.linalg.norm(normal, axis=1)[:, None]
    axes = np.stack([normal, direction, np.cross(normal, direction)], axis=2)
    angles = np.stack([np.where(through, 0.0, distance), np.ones_like(distance)], axis=1)
    angles /= np.linalg.norm(angles, axis=1)[:, None]
    return np.concatenate([Rotation.from_matrix(axes).as_quat(), angles], axis=1)
