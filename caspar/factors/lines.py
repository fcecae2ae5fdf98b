"""Factors of lines and planes in pictures: reprojection of lines, planar homographies.

Each function returns a `caspar.Factor`. A line in space is a `Line`, four degrees of freedom.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from caspar.errors import InputError
from caspar.factors.making import (
    Choices,
    Markers,
    NodeChoice,
    check_kind,
    common,
    each,
    library,
    make_factor,
    node,
)
from caspar.factors.whitening import NoiseChoice
from caspar.frontend.factors.factor import Factor


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
