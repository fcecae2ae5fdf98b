"""Map a plane back to directions in camera coordinates, if a closed formula exists.

Each function inverts one of `projections` without polynomial distortion: it takes the extra
parameters and two coordinates, and returns a direction of any positive length. Sources: those of
`projections`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from caspar.cameras.arithmetic import Arithmetic
from caspar.cameras.distortions import SMALL_SQUARE
from caspar.cameras.projections import EPSILON

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
