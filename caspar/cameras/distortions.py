"""Distortions of normalised image coordinates: COLMAP's polynomials and the field-of-view model.

Each function takes the extra parameters of a model and two coordinates, and returns two
coordinates. The coordinates are x / z and y / z for perspective models; for fisheye models they
are scaled so that their length is the angle to the optical axis. The formulas are those of COLMAP
4 (sensor/models.h), which takes them from OpenCV's calibration module, from Devernay and Faugeras,
*Straight lines have to be straight*, 2001 (`field_of_view`), from Weng, Cohen and Herniou, *Camera
calibration with distortion models*, 1992 (`thin_prism`), and from Project Aria (`aria`).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from caspar.cameras.arithmetic import Arithmetic

Pair: TypeAlias = tuple[Any, Any]
"""Two scalars, symbolic or arrays."""

Distortion: TypeAlias = Callable[[Arithmetic, Sequence[Any], Any, Any], Pair]
"""A function of the extra parameters and two coordinates."""

SMALL_SQUARE = 1e-4
"""COLMAP's bound on squares of omega and radius, below which it takes series instead."""


def undistorted(_: Arithmetic, __: Sequence[Any], u: Any, v: Any) -> Pair:
    """Return the coordinates as they are."""
    return u, v


def polynomial(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Multiply by 1 + k1 r^2 + k2 r^4 + ..., with as many terms as there are parameters."""
    factor = _radial(extra, u * u + v * v)
    return factor * u, factor * v


def radial_tangential(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Apply k1, k2, p1, p2 of OpenCV's model."""
    k1, k2, p1, p2 = extra
    factor = _radial((k1, k2), u * u + v * v)
    du, dv = _tangential(p1, p2, u, v)
    return factor * u + du, factor * v + dv


def rational(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Apply k1, k2, p1, p2, k3, k4, k5, k6 of OpenCV's rational model."""
    k1, k2, p1, p2, k3, k4, k5, k6 = extra
    square = u * u + v * v
    factor = _radial((k1, k2, k3), square) / _radial((k4, k5, k6), square)
    du, dv = _tangential(p1, p2, u, v)
    return factor * u + du, factor * v + dv


def thin_prism(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Apply k1, k2, p1, p2, k3, k4, sx1, sy1."""
    k1, k2, p1, p2, k3, k4, sx1, sy1 = extra
    square = u * u + v * v
    factor = _radial((k1, k2, k3, k4), square)
    du, dv = _tangential(p1, p2, u, v)
    return factor * u + du + sx1 * square, factor * v + dv + sy1 * square


def aria(_: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Apply k0 ... k5 first, and p0, p1, s0 ... s3 to the result."""
    factor = _radial(extra[:6], u * u + v * v)
    p0, p1, s0, s1, s2, s3 = extra[6:]
    u, v = factor * u, factor * v
    square = u * u + v * v
    du, dv = _tangential(p1, p0, u, v)
    return u + du + s0 * square + s1 * square**2, v + dv + s2 * square + s3 * square**2


def field_of_view(math: Arithmetic, extra: Sequence[Any], u: Any, v: Any) -> Pair:
    """Multiply by atan(2 r tan(omega / 2)) / (r omega), or by COLMAP's series where that is 0/0."""
    (omega,) = extra
    square = u * u + v * v
    tangent = math.tan(omega / 2)
    radius = math.sqrt(square)
    factor = math.where(
        omega**2 < SMALL_SQUARE,
        omega**2 * square / 3 - omega**2 / 12 + 1,
        math.where(
            square < SMALL_SQUARE,
            -2 * tangent * (4 * square * tangent**2 - 3) / (3 * omega),
            math.atan(2 * radius * tangent) / (radius * omega),
        ),
    )
    return factor * u, factor * v


def _radial(coefficients: Sequence[Any], square: Any) -> Any:
    """1 + c1 s + c2 s^2 + ..."""
    value: Any = 0
    for coefficient in reversed(coefficients):
        value = square * (coefficient + value)
    return 1 + value


def _tangential(p1: Any, p2: Any, u: Any, v: Any) -> Pair:
    square = u * u + v * v
    du = 2 * p1 * u * v + p2 * (square + 2 * u * u)
    dv = 2 * p2 * u * v + p1 * (square + 2 * v * v)
    return du, dv
