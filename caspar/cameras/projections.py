"""Project camera coordinates to a plane, before focal lengths and principal point.

Each projection returns two coordinates and a *clearance*: a number that is negative exactly where
the model has no pixel for the point, such as its depth less a rounding. Formulas: COLMAP 4
(sensor/models.h); Fitzgibbon, *Simultaneous linear estimation of multiple view geometry and lens
distortion*, 2001 (`division`); Khomutenko, Garcia and Martinet, *An enhanced unified camera model*,
2016 (`enhanced_unified`); Mei and Rives, *Single view point omnidirectional camera calibration from
planar grids*, 2007 (`unified`); Usenko, Demmel and Cremers, *The double sphere camera model*, 2018
(`double_sphere`); Kannala and Brandt, *A generic camera model and calibration method*, 2006.

Also here: maps of a plane back to directions in camera coordinates, if a closed formula exists.
Each inverts a projection without polynomial distortion: it takes the extra parameters and two
coordinates, and returns a direction of any positive length.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from caspar.cameras.arithmetic import Arithmetic
from caspar.cameras.distortions import SMALL_SQUARE, Distortion, radial_tangential

Projected: TypeAlias = tuple[Any, Any, Any]
"""Two coordinates and the clearance."""

Projection: TypeAlias = Callable[[Arithmetic, Sequence[Any], Any, Any, Any], Projected]
"""A function of the extra parameters and x, y, z."""

EPSILON = 2.0**-52
"""COLMAP's least depth: the rounding of 1 in float64."""


def perspective(distortion: Distortion) -> Projection:
    """Divide by the depth, then distort."""

    def project(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
        u, v = distortion(math, extra, x / z, y / z)
        return u, v, z - EPSILON

    return project


def fisheye(distortion: Distortion) -> Projection:
    """Replace the radius r of x / z, y / z by the angle atan(r), then distort."""

    def project(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
        u, v = x / z, y / z
        radius = math.sqrt(u * u + v * v)
        factor = math.where(radius > EPSILON, math.atan(radius) / radius, 1)
        u, v = distortion(math, extra, factor * u, factor * v)
        return u, v, z - EPSILON

    return project


def wide_fisheye(distortion: Distortion) -> Projection:
    """Like `fisheye`, with the angle atan2(r, z): up to 180 degrees off the axis."""

    def project(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
        radius = math.sqrt(x * x + y * y)
        is_off_axis = radius > EPSILON * math.absolute(z)
        factor = math.where(is_off_axis, math.atan2(radius, z) / radius, 1 / z)
        u, v = distortion(math, extra, factor * x, factor * y)
        return u, v, math.where(is_off_axis, radius, z) - EPSILON

    return project


def division(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
    """Solve u (1 + k r^2)^-1 = x / z for u, the root that is x / z where k is 0.

    COLMAP has no pixel where the root is complex. Here neither where it is double or infinite: its
    derivatives are not finite there.
    """
    (k,) = extra
    discriminant = z * z - 4 * k * (x * x + y * y)
    root = math.sqrt(discriminant)
    factor = 2 / (z + root)
    is_real = discriminant > 0
    clearance = math.where(is_real, math.absolute(z + root) - EPSILON * math.absolute(z), -1)
    return factor * x, factor * y, clearance


def enhanced_unified(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
    """Divide by alpha sqrt(beta (x^2 + y^2) + z^2) + (1 - alpha) z."""
    alpha, beta = extra
    square = beta * (x * x + y * y) + z * z
    depth = alpha * math.sqrt(square) + (1 - alpha) * z
    is_real = math.minimum(square, z - EPSILON) >= 0
    return x / depth, y / depth, math.where(is_real, depth - EPSILON, -1)


def unified(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
    """Divide by z + xi |x|, then distort by k1, k2, p1, p2.

    A point has a pixel where z > -|x| / xi, for xi <= 1 where z > -xi |x| (Mei and Rives,
    equation 6): there the projection is one to one.
    """
    xi, *distortion = extra
    distance = math.sqrt(x * x + y * y + z * z)
    depth = z + xi * distance
    is_steep = xi > 1
    clearance = math.where(is_steep, z + distance / math.where(is_steep, xi, 1), depth)
    u, v = radial_tangential(math, distortion, x / depth, y / depth)
    return u, v, clearance - EPSILON


def double_sphere(math: Arithmetic, extra: Sequence[Any], x: Any, y: Any, z: Any) -> Projected:
    """Project to two spheres whose centres are xi apart, then to a plane.

    A point has a pixel where z > -w2 |x| (Usenko, Demmel and Cremers, equations 43 to 45).
    """
    xi, alpha = extra
    first = math.sqrt(x * x + y * y + z * z)
    shifted = z + xi * first
    second = math.sqrt(x * x + y * y + shifted * shifted)
    depth = alpha * second + (1 - alpha) * shifted
    w1 = math.where(alpha > 0.5, (1 - alpha) / alpha, alpha / (1 - alpha))
    w2 = (w1 + xi) / math.sqrt(2 * w1 * xi + xi * xi + 1)
    return x / depth, y / depth, z + w2 * first - EPSILON


Direction: TypeAlias = tuple[Any, Any, Any]
"""x, y and z in camera coordinates."""

Unprojection: TypeAlias = Callable[[Arithmetic, Sequence[Any], Any, Any], Direction]
"""A function of the extra parameters and two coordinates."""


def from_perspective(_: Arithmetic, __: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert a perspective projection without distortion."""
    return u, v, 1


def from_fisheye(math: Arithmetic, _: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert a fisheye projection without distortion; the radius is the angle to the axis."""
    angle = math.sqrt(u * u + v * v)
    factor = math.where(angle > EPSILON, math.sin(angle) / angle, 1)
    return factor * u, factor * v, math.cos(angle)


def from_field_of_view(math: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert the field-of-view model; within COLMAP's series to their error, about 1e-8."""
    (omega,) = extra
    square = u * u + v * v
    radius = math.sqrt(square)
    tangent = math.tan(omega / 2)
    factor = math.where(
        omega**2 < SMALL_SQUARE,
        1 + omega**2 * (1 - 4 * square) / 12,
        math.where(
            square < SMALL_SQUARE,
            omega * (omega**2 * square + 3) / (6 * tangent),
            math.tan(radius * omega) / (2 * radius * tangent),
        ),
    )
    return factor * u, factor * v, 1


def from_division(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert the division model."""
    (k,) = extra
    return u, v, 1 + k * (u * u + v * v)


def from_enhanced_unified(math: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert the enhanced unified model (Khomutenko, Garcia and Martinet, equation 13)."""
    alpha, beta = extra
    square = beta * (u * u + v * v)
    root = math.sqrt(1 - (2 * alpha - 1) * square)
    return u, v, (1 - alpha * alpha * square) / (alpha * root + 1 - alpha)


def from_double_sphere(math: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Direction:
    """Invert the double sphere model (Usenko, Demmel and Cremers, equations 46 to 48)."""
    xi, alpha = extra
    square = u * u + v * v
    root = math.sqrt(1 - (2 * alpha - 1) * square)
    depth = (1 - alpha * alpha * square) / (alpha * root + 1 - alpha)
    length = depth * depth + square
    factor = (depth * xi + math.sqrt(depth * depth + (1 - xi * xi) * square)) / length
    return factor * u, factor * v, factor * depth - xi
