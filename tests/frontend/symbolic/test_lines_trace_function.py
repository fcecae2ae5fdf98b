"""The function that records lines changes no result and leaves other trace functions alone."""

import inspect
import io
import pdb
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar
from caspar.frontend.factors.trace import trace
from caspar.frontend.symbolic.lines import run_with_lines
from tests.frontend.factors.residuals import FACTORS
from tests.frontend.symbolic.line_origins import UNTRACED, lines_of, origins, square

pytestmark = UNTRACED

a, b = sf.symbols("a b")


@pytest.mark.parametrize("name", FACTORS)
def test_the_result_is_the_same(name: str) -> None:
    factor = FACTORS[name]
    with_lines = trace(factor)
    sys.settrace(lambda *_: None)  # recording is left to it
    try:
        without = trace(factor)
    finally:
        sys.settrace(None)
    assert with_lines.residual == without.residual
    assert len(without.lines.of) == 0
    assert all(row in with_lines.lines.of for row in with_lines.residual)


def test_it_is_gone_afterwards() -> None:
    def broken(x: Any) -> Any:
        assert sys.gettrace() is not None
        raise KeyError(x)

    with pytest.raises(KeyError):
        run_with_lines(broken, a)
    assert sys.gettrace() is None
    run_with_lines(square, a)
    assert sys.gettrace() is None


def test_another_trace_function_is_not_disturbed() -> None:
    events: list[tuple[str, str, int]] = []

    def watch(frame: Any, event: str, _: Any) -> Any:
        events.append((frame.f_code.co_name, event, frame.f_lineno))
        return watch

    sys.settrace(watch)
    try:
        result, lines = run_with_lines(square, a)
        still = sys.gettrace()
    finally:
        sys.settrace(None)
    assert still is watch
    assert result == a**2 * sf.tan(a)
    assert len(lines.of) == 0
    first = inspect.getsourcelines(square)[1]
    seen = [(event, line - first) for name, event, line in events if name == "square"]
    assert seen == [("call", 0), ("line", 1), ("line", 2), ("return", 2)]


def test_breakpoints_work() -> None:
    output = io.StringIO()
    commands = io.StringIO("next\nnext\np y\ncontinue\n")
    debugger = pdb.Pdb(stdin=commands, stdout=output, nosigint=True, readrc=False)

    def residual(x: Any) -> Any:
        before = sf.cos(x)
        debugger.set_trace()
        y = sf.sin(before)
        return y + 1

    result, lines = run_with_lines(residual, a)
    assert result == sf.sin(sf.cos(a)) + 1
    assert "sin(cos(a))" in output.getvalue()
    assert "return y + 1" in output.getvalue()
    assert lines.of[sf.cos(a)].text == "before = sf.cos(x)"
    assert sys.gettrace() is None  # pdb's `continue`


def test_a_debugger_that_stays_is_left_alone() -> None:
    def debugger(*_: Any) -> Any:
        return debugger

    def residual(x: Any) -> Any:
        sys.settrace(debugger)
        return sf.sin(x)

    try:
        run_with_lines(residual, a)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)


def test_threads_have_lines_of_their_own() -> None:
    together = Barrier(2, timeout=60)

    def first(x: Any) -> Any:
        together.wait()
        y = sf.sin(x)
        together.wait()
        return y

    def second(x: Any) -> Any:
        together.wait()
        y = sf.cos(x)
        together.wait()
        return y

    with ThreadPoolExecutor(2) as pool:
        lines = list(pool.map(lines_of, (first, second), (a, b)))
        assert set(pool.map(lambda _: sys.gettrace(), range(4))) == {None}
    assert [set(found.of) for found in lines] == [{a, sf.sin(a)}, {b, sf.cos(b)}]
    assert lines[1].of[sf.cos(b)].origin == "second: y = sf.cos(x)"


def test_a_function_that_traces_another_factor() -> None:
    class Point(sf.V3): ...

    @caspar.factor
    def inner(point: Annotated[Point, caspar.TunableShared]) -> sf.V3:
        return 2 * point

    def residual(x: Any) -> Any:
        rows = trace(inner).residual
        y = sf.sin(x)
        return y * rows[0]

    assert origins(residual, a)(sf.sin(a)) == "residual: y = sf.sin(x)"
