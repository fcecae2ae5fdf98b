"""Splines through a few knots, written out as arithmetic of a residual.

Input: a symbolic value, knots and the values there. Output: one expression. The cost grows with the
number of knots, since every interval adds its own terms.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, Literal

import symforce.symbolic as sf

MAX_KNOTS = 64
"""Every interval is evaluated for every instance, so a longer table would be slow."""


def spline(
    x: Any,
    knots: Sequence[float],
    values: Sequence[Any],
    method: Literal["linear", "cubic"] = "cubic",
) -> Any:
    """Interpolate a short table inside a residual or a kernel.

    The derivative is that of the interpolant, at a knot that from the right. Outside the knots the
    first or the last value continues, with derivative 0.

    Args:
        x: Where the spline is evaluated: a symbolic scalar or a number.
        knots: 2 to 64 increasing numbers.
        values: The value at each knot: numbers, or symbolic scalars, which may be tunable.
        method: "linear" joins the values by straight lines. "cubic" is a Hermite spline with a
            continuous slope: at an inner knot that of the line through its two neighbours, at an
            outer knot that of its interval. With equal distances it is the Catmull-Rom spline.

    Returns:
        The interpolated value, a symbolic scalar.

    Raises:
        ValueError: The knots, the number of values or the method are not as described.

    Example:
        >>> import caspar
        >>> float(caspar.spline(1.5, [0.0, 1.0, 2.0], [0.0, 1.0, 4.0], method="linear"))
        2.5
    """
    places = [float(knot) for knot in knots]
    _check(places, len(values), method)
    lines = [
        (values[i + 1] - values[i]) / (places[i + 1] - places[i]) for i in range(len(places) - 1)
    ]
    slopes = _slopes(places, values, lines)
    result = values[0]
    # Each interval adds the change of the spline over the part of it that lies before x.
    for i, (start, end) in enumerate(pairwise(places)):
        width = end - start
        # Min and Max would let both intervals at a knot have a derivative there.
        t = sf.Piecewise((0, x < start), (x - start, x < end), (width, True))
        if method == "linear":
            result = result + lines[i] * t
            continue
        square = (3 * lines[i] - 2 * slopes[i] - slopes[i + 1]) / width
        cube = (slopes[i] + slopes[i + 1] - 2 * lines[i]) / width**2
        result = result + t * (slopes[i] + t * (square + t * cube))
    return result


def _slopes(places: Sequence[float], values: Sequence[Any], lines: Sequence[Any]) -> list[Any]:
    """Return the slope of the cubic spline at each knot."""
    inner = [
        (values[i + 1] - values[i - 1]) / (places[i + 1] - places[i - 1])
        for i in range(1, len(places) - 1)
    ]
    return [lines[0], *inner, lines[-1]]


def _check(places: Sequence[float], num_values: int, method: str) -> None:
    if method not in ("linear", "cubic"):
        raise ValueError(f"caspar.spline: method is {method!r}; allowed are 'linear' and 'cubic'")
    if not 2 <= len(places) <= MAX_KNOTS:
        raise ValueError(
            f"caspar.spline: knots has {len(places)} entries; allowed are 2 to {MAX_KNOTS}"
        )
    if num_values != len(places):
        raise ValueError(
            f"caspar.spline: values has {num_values} entries, but knots has {len(places)}; "
            "pass one value per knot"
        )
    for i, (start, end) in enumerate(pairwise(places)):
        if not (isfinite(start) and isfinite(end) and start < end):
            raise ValueError(
                f"caspar.spline: knots[{i}] is {start} and knots[{i + 1}] is {end}; knots must be "
                "finite and increase"
            )
