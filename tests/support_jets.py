"""The truth about values and slopes of `support_functions.CASES`, and how far results are from it.

Slopes of the true formulas are differences in hundreds of digits. A result may be off by some
roundings of its own size and of what a rounding of each argument changes: a sine of 1e6 cannot be
better than its argument.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support_functions import CASES, Array, Case, mp

PROCESSOR_ROUNDINGS = (4.0, 8.0)
CUDA_ROUNDINGS = (6.0, 12.0)
"""How many roundings a value and a slope may be off."""

_NEARLY_DENORMAL = 128.0
"""Times the smallest normal number: a greater factor may have met a denormal step."""


@dataclass(frozen=True)
class Jet:
    """A true value with its first and second derivatives; None where there is a kink or pole.

    `known` has how far off results are that were compared, by column and result: targets mostly
    find the same.
    """

    value: Any
    slopes: tuple[Any, ...]
    curvatures: tuple[tuple[Any, ...], ...]
    known: dict[tuple[int, bytes], tuple[float, str]] = field(default_factory=dict)


def too_far(
    rows: Array,
    results: Array,
    jets: Mapping[str, list[Jet | None]],
    roundings: tuple[float, float],
) -> list[str]:
    """A line for each value or slope that is off by more than its roundings, the worst row.

    Args:
        rows: Arguments, in the type that was computed in.
        results: Of `function_kernel`.
        jets: `truth(rows)`.
        roundings: Allowed of values and of slopes.
    """
    lines = []
    for number, (name, case) in enumerate(CASES.items()):
        for column in range(1 + case.num_arguments):
            worst, message = 0.0, ""
            found = results[:, 3 * number + column]
            for row, result, jet in zip(rows, found, jets[name], strict=True):
                if jet is None:
                    continue
                key = (column, result.tobytes())
                if key not in jet.known:
                    jet.known[key] = _roundings(case, jet, column, row, result)
                ratio, wanted = jet.known[key]
                if ratio > worst:
                    worst, message = ratio, f"{result!r} for {wanted}, of {row}"
            allowed = roundings[min(column, 1)]
            if worst > allowed:
                what = ("the value", "d/dx", "d/dy")[column]
                lines.append(
                    f"{name}: {what} is off by {worst:.3g} of {allowed} roundings: {message}"
                )
    return lines


def truth(rows: Array) -> dict[str, list[Jet | None]]:
    """Case -> the truth at each row; None where a rounding before a jump decides."""
    eps = float(np.finfo(rows.dtype).eps)
    result: dict[str, list[Jet | None]] = {}
    for name, case in CASES.items():
        known: dict[tuple[float, ...], Jet | None] = {}
        result[name] = []
        for row in rows:
            key = tuple(float(number) for number in row[: case.num_arguments])
            if key not in known:
                with mp.workprec(case.bits):
                    known[key] = _jet(case, key, eps)
            result[name].append(known[key])
    return result


def _jet(case: Case, key: tuple[float, ...], eps: float) -> Jet | None:
    at = [mp.mpf(number) for number in key]
    value = _value(case, at)
    if value is None:
        return None
    if case.quotient is not None:
        quotient = case.quotient(*at)
        if abs(quotient - mp.nint(quotient)) < 8 * eps * (1 + abs(quotient)):
            return None
    places = range(len(at))
    steps = [mp.ldexp(min(max(abs(a), mp.mpf(2) ** -80), mp.mpf(1)), -100) for a in at]
    around = {
        offset: _value(case, [a + k * h for a, k, h in zip(at, offset, steps, strict=True)])
        for offset in _offsets(len(at))
    }
    return Jet(
        value,
        tuple(_slope(around, place, value, steps) for place in places),
        tuple(tuple(_curvature(around, i, j, value, steps) for j in places) for i in places),
    )


def _offsets(num_arguments: int) -> Iterator[tuple[float, ...]]:
    for place in range(num_arguments):
        yield from (_along(place, step, num_arguments) for step in (-1.0, -0.5, 0.5, 1.0))
    if num_arguments == 2:
        yield from ((i, j) for i in (-1.0, 1.0) for j in (-1.0, 1.0))


def _along(place: int, step: float, num_arguments: int) -> tuple[float, ...]:
    return tuple(step if other == place else 0.0 for other in range(num_arguments))


def _value(case: Case, at: list[Any]) -> Any:
    """A real number, NaN where there is none, None at a pole."""
    try:
        value = case.truth(*at)
    except (ZeroDivisionError, ValueError):
        return None
    if isinstance(value, mp.mpc):
        return mp.nan
    return None if mp.isinf(value) else value


def _slope(around: Mapping[Any, Any], place: int, value: Any, steps: list[Any]) -> Any:
    """The four one-sided differences, of a step and of half of it, agree; or there is none."""
    slopes = []
    for step in (-1.0, -0.5, 0.5, 1.0):
        there = around[_along(place, step, len(steps))]
        if there is None or mp.isnan(there + value):
            return None
        slopes.append((there - value) / (step * steps[place]))
    size = mp.ldexp(max(map(abs, slopes)), -60)
    return (slopes[0] + slopes[3]) / 2 if max(slopes) - min(slopes) <= size else None


def _curvature(around: Mapping[Any, Any], i: int, j: int, value: Any, steps: list[Any]) -> Any:
    if i == j:
        after, before = (around[_along(i, step, len(steps))] for step in (1.0, -1.0))
        corners = [after, before, value]
        weights = [1, 1, -2]
    else:
        corners = [around[pair] for pair in ((1, 1), (-1, -1), (1, -1), (-1, 1))]
        weights = [1, 1, -1, -1]
    if any(corner is None or mp.isnan(corner) for corner in corners):
        return mp.mpf(0)
    total = mp.fsum(weight * corner for weight, corner in zip(weights, corners, strict=True))
    return total / (steps[i] * steps[j] * (1 if i == j else 4))


def _roundings(case: Case, jet: Jet, column: int, row: Array, found: Any) -> tuple[float, str]:
    """By how many roundings a result is off, and what it should be.

    Near the smallest normal number any result will do that is not greater.
    """
    wanted = jet.value if column == 0 else jet.slopes[column - 1]
    if wanted is None:
        return 0.0, ""
    if mp.isnan(wanted):
        is_right = column > 0 or np.isnan(found)
        return (0.0 if is_right else np.inf), "NaN"
    arguments = [mp.mpf(float(number)) for number in row[: case.num_arguments]]
    by_argument = jet.slopes if column == 0 else jet.curvatures[column - 1]
    scale = abs(wanted)
    if case.spread is not None:
        scale += abs(wanted) * case.spread(*arguments)
    if column > 0:
        scale += case.slope_floor
    for argument, change in zip(arguments, by_argument, strict=True):
        scale += abs(argument * change) if change is not None else 0
    info = np.finfo(row.dtype)
    unit = scale * float(info.eps) + _NEARLY_DENORMAL * float(info.tiny)
    if abs(wanted) + unit > float(info.max):
        return (0.0 if abs(found) > 0.9 * info.max else np.inf), mp.nstr(wanted, 12)
    if not np.isfinite(found):
        return np.inf, mp.nstr(wanted, 12)
    return float(abs(mp.mpf(float(found)) - wanted) / unit), mp.nstr(wanted, 12)
