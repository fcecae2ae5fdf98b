"""Fitted values with their standard errors as text, by the names of fields.

Input: values of one node, and errors over its tangent if they are known. Output: text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

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
        meaning: What they refer to, in a sentence or two.
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

    Args:
        values: (storage_dim,).
        errors: (tangent_dim,); NaN for one that is not known, 0 for what is held or at a bound.
            None: none is known.
        storage: Where each field is in the values; empty: there are no fields.
        tangent: Where each is in the errors.
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
