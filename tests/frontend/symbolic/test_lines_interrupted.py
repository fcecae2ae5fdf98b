"""A trace function that an interrupt has left behind takes itself away."""

import sys
from typing import Any

import symforce.symbolic as sf

from caspar.frontend.symbolic import lines
from caspar.frontend.symbolic.lines import run_with_lines
from tests.frontend.symbolic.line_origins import UNTRACED, square

pytestmark = UNTRACED

a = sf.Symbol("a")


def leave_one_behind() -> None:
    """What an interrupt does that comes before `sys.settrace(None)`."""
    sys.settrace(lines._Recorder(__file__).on_call)


def test_it_goes_at_the_next_call() -> None:
    leave_one_behind()
    square(a)  # of a file that counts as the user's
    left = sys.gettrace()
    sys.settrace(None)
    assert left is None


def test_the_next_run_records_lines() -> None:
    recorder = lines._Recorder("another file")
    sys.settrace(recorder.on_call)
    try:
        result, found = run_with_lines(square, a)
    finally:
        left = sys.gettrace()
        sys.settrace(None)
    assert left is None
    assert result in found.of


def test_one_inside_another_is_no_left_over() -> None:
    def residual(x: Any) -> Any:
        active = sys.gettrace()
        run_with_lines(square, x)
        assert sys.gettrace() is active
        return sf.sin(x)

    _, found = run_with_lines(residual, a)
    assert found.of[sf.sin(a)].origin == "residual: return sf.sin(x)"
