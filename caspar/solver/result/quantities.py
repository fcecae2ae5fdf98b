"""Numbers as text for people: a few digits, a unit, nothing that the computation does not know."""

import math
from html import escape

_BYTE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def cost_text(cost: float, digits: int = 6) -> str:
    """A cost with thousands separators; in scientific notation if it is very large or small.

    Args:
        cost: The cost; infinite and NaN are said as such.
        digits: Significant digits.
    """
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
