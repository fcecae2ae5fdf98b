"""Text that determines expressions and where they come from, as a part of cache keys.

`str` will not do: it repeats what is shared, so that it grows exponentially (340 ms for a factor of
436 sub-expressions), and it prints 15 digits of numbers, so that different ones look the same.
"""

from collections.abc import Sequence
from typing import Any

from symengine.lib.symengine_wrapper import RealDouble

from caspar.frontend.symbolic.lines import Lines


def expression_key(expressions: Sequence[Any], lines: Lines | None = None) -> str:
    """One entry for each sub-expression, children first: what, of which, from where.

    Of `lines`, if they are given, only the origins are in the key.
    """
    line_of = {} if lines is None else lines.of
    numbers: dict[Any, int] = {}
    origins: dict[str, int] = {}
    entries: list[str] = []
    pending = list(reversed(expressions))
    while pending:
        current = pending[-1]
        if current in numbers:
            pending.pop()
            continue
        missing = [child for child in current.args if child not in numbers]
        if missing:
            pending += reversed(missing)
            continue
        line = line_of.get(current)
        origin = origins.setdefault("" if line is None else line.origin, len(origins))
        children = [numbers[child] for child in current.args]
        entries.append(f"{_described(current)}{children} {origin}")
        numbers[current] = len(numbers)
        pending.pop()
    rows = [numbers[expression] for expression in expressions]
    return f"{rows} of {'; '.join(entries)} from {list(origins)}"


def _described(expression: Any) -> str:
    kind = type(expression).__name__
    if isinstance(expression, RealDouble):
        return f"{kind} {float(expression)!r}"
    if len(expression.args) == 0:
        return f"{kind} {expression}"
    return f"{kind} {expression.get_name()}" if hasattr(expression, "get_name") else kind
