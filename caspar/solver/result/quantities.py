"""Numbers as text for people: a few digits, a unit, nothing that the computation does not know.

Also values of one node by the names of fields, with standard errors if they are known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from numpy.typing import NDArray

_BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def cost_text(cost: float, digits: int = 6) -> str:
    """A cost with thousands separators; in scientific notation if it is very large or small."""
    if not math.isfinite(cost) or cost == 0.0:
        return f"{cost:g}"
    rounded = float(f"{cost:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -4 <= exponent < 9:
        return f"{rounded:.{digits - 1}e}"
    return f"{rounded:,.{max(digits - 1 - exponent, 0)}f}"


def change_text(before: float, after: float) -> str:
    """Return how much lower a cost became, in words; empty where that cannot be said."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0.0:
        return ""
    if after == before:
        return "unchanged"
    if after > before:
        return "higher"
    if after == 0.0:
        return "to zero"
    if before < 2.0 * after:
        return f"{100.0 * (before - after) / before:.3g} % lower"
    ratio = before / after
    return f"{_three_digits(ratio)} times lower" if ratio < 1e6 else f"{ratio:.1e} times lower"


def time_text(seconds: float) -> str:
    """A duration with its unit, three digits."""
    if not math.isfinite(seconds):
        return "?"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * scale >= 0.9995 or unit == "us":
            return f"{_three_digits(seconds * scale)} {unit}"
    raise AssertionError("microseconds always fit")


def bytes_text(num_bytes: int) -> str:
    """A size with its binary unit, three digits."""
    size = float(num_bytes)
    for unit in _BYTE_UNITS:
        if size < 1000.0 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{_three_digits(size)} {unit}"
        size /= 1024.0
    raise AssertionError("the last unit always fits")


def count_text(count: int, what: str) -> str:
    """A count and its noun, in the plural where it is not one."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def preformatted(text: str) -> str:
    """Return a text for notebooks, which show it as it is printed."""
    return f"<pre>{escape(text)}</pre>"


def _three_digits(number: float) -> str:
    """A number with three significant digits, or all of its integer part; never scientific."""
    rounded = float(f"{number:.2e}")
    if abs(rounded) >= 100.0:
        return f"{number:,.0f}"
    return f"{rounded:.1f}" if abs(rounded) >= 10.0 else f"{rounded:.2f}"


MOST_FITTED = 24
"""Numbers of all values up to which a report lists them, with standard errors if they are known."""

FEWEST_DIGITS, MOST_DIGITS = 6, 15
"""Digits of a value; between these as many as its standard error leaves meaningful."""


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of the values of a small problem, for its report.

    Attributes:
        by_type: By node type (n, tangent_dim), NaN for what a covariance was not asked for.
        tangent: By node type that is a dataclass, where each field is in its tangent.
    """

    by_type: Mapping[str, NDArray[Any]]
    tangent: Mapping[str, Mapping[str, range]] = field(default_factory=dict)
    meaning: str = ""


def fields_text(
    values: Sequence[float],
    errors: Sequence[float] | None,
    storage: Mapping[str, range],
    tangent: Mapping[str, range],
) -> str:
    """A node's values by the names of its fields, such as `height 3.1 +- 0.2, rate 2 (held)`.

    `errors`: (tangent_dim,); NaN for one that is not known, 0 for what is held. `storage`: Where
    each field is in the values; empty: there are no fields.
    """
    places = storage if len(storage) > 0 else {"": range(len(values))}
    parts = []
    for name, place in places.items():
        own = None
        if errors is not None:
            where = tangent[name] if name in tangent else range(len(errors))
            own = [errors[number] for number in where]
        text = _numbers_text([values[number] for number in place], own)
        is_group = len(storage) > 0 and len(place) > 1
        parts.append(f"{name} ({text})" if is_group else f"{name} {text}".strip())
    return ", ".join(parts)


def _numbers_text(values: Sequence[float], errors: Sequence[float] | None) -> str:
    if errors is None or all(math.isnan(error) for error in errors):
        return ", ".join(f"{value:.6g}" for value in values)
    if len(values) == len(errors):
        return ", ".join(map(_number_text, values, errors))
    # a rotation has more numbers than degrees of freedom
    shown = ", ".join(f"{value:.6g}" for value in values)
    return f"{shown}; standard errors {', '.join(f'{error:.2g}' for error in errors)}"


def _number_text(value: float, error: float) -> str:
    if math.isnan(error):
        return f"{value:.6g}"
    if error == 0.0:
        return f"{value:.6g} (held)"
    digits = FEWEST_DIGITS
    if value != 0.0 and 0.0 < error < math.inf:
        # to the second digit of the error
        needed = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2
        digits = min(max(needed, FEWEST_DIGITS), MOST_DIGITS)
    return f"{value:.{digits}g} +- {error:.2g}"
