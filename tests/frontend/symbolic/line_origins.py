"""Origins of what a function makes, where no other trace function hides them."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import symforce.symbolic as sf

from caspar.frontend.symbolic.lines import Lines, run_with_lines

UNTRACED = pytest.mark.skipif(
    sys.gettrace() is not None, reason="under a debugger or a coverage tool no line is recorded"
)


def lines_of(function: Callable[..., Any], *args: Any) -> Lines:
    return run_with_lines(function, *args)[1]


def origins(function: Callable[..., Any], *args: Any) -> Callable[[Any], str]:
    """Origin of a sub-expression of what the function does with its arguments."""
    lines = lines_of(function, *args)
    return lambda expression: lines.of[expression].origin


def square(value: Any) -> Any:
    doubled = value**2
    return doubled * sf.tan(value)
