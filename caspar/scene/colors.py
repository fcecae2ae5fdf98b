"""Colours of residuals: one logarithmic scale for all states of a scene.

Input: a `Scene`. Output: limits and ticks of the scale. Cost: some sorts of what is drawn.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.scene.scene import Floats, Scene

BACKGROUND = "#0d1117"
TEXT = "#c9d1d9"
FAINT = "#8b949e"
CAMERA = "#f0f6fc"
PLAIN = "#79c0ff"

SCALE = ((0.0, "#2f6fde"), (0.3, "#39c5cf"), (0.55, "#e3d26f"), (0.78, "#f08c3a"), (1.0, "#e5383b"))
"""Colours from small residuals to large ones, for a dark background."""

MAX_DECADES = 4.0
MIN_DECADES = 0.5
LEAST = 1e-12
"""Residuals below it are drawn as if they were so long."""


@dataclass(frozen=True)
class ErrorScale:
    """Limits of the logarithm to base 10 of residuals, and places and texts of its labels."""

    low: float
    high: float
    ticks: tuple[float, ...]
    texts: tuple[str, ...]


def error_scale(scene: Scene) -> ErrorScale | None:
    """Fit the scale to what is drawn; None: there are no residuals."""
    first, last = (_lengths(scene, place) for place in (0, -1))
    if len(last) == 0:
        return None
    low, most = np.percentile(last, [5.0, 98.0])
    high = max(most, float(np.percentile(first, 90.0)) if len(first) > 0 else most)
    high = min(high, low + MAX_DECADES)
    if high - low < MIN_DECADES:
        middle = 0.5 * (low + high)
        low, high = middle - 0.5 * MIN_DECADES, middle + 0.5 * MIN_DECADES
    return ErrorScale(float(low), float(high), *_ticks(float(low), float(high)))


def rgb(errors: Floats, scale: ErrorScale) -> NDArray[np.uint8]:
    """(k, 3) colours of lengths of residuals; NaN is grey."""
    share = (logarithms(errors) - scale.low) / (scale.high - scale.low)
    places = [place for place, _ in SCALE]
    known = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for _, color in SCALE])
    found = np.stack([np.interp(share, places, channel) for channel in known.T], axis=-1)
    return np.where(np.isnan(share)[:, None], 128, found).astype(np.uint8)


def logarithms(errors: Floats) -> Floats:
    """Return logarithms of lengths of residuals; NaN stays."""
    found: Floats = np.log10(np.maximum(errors, LEAST))
    return found


def _lengths(scene: Scene, place: int) -> Floats:
    arrays = [array for array in scene.states[place].errors.values() if array.size > 0]
    if len(arrays) == 0:
        return np.empty(0)
    found = logarithms(np.concatenate(arrays))
    return found[np.isfinite(found)]


def _ticks(low: float, high: float) -> tuple[tuple[float, ...], tuple[str, ...]]:
    steps = (1, 2, 5) if high - low < 1.6 else (1, 3) if high - low < 3.0 else (1,)
    numbers = [
        step * 10.0**decade
        for decade in range(math.floor(low), math.ceil(high) + 1)
        for step in steps
    ]
    shown = [number for number in numbers if low <= math.log10(number) <= high]
    return tuple(map(math.log10, shown)), tuple(f"{number:g}" for number in shown)
