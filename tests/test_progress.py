"""What is shown while a user waits: a line that goes away, printed iterations, the logger."""

import io
import itertools
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar import progress
from caspar.errors import OptionError
from caspar.progress import iteration, phase, showing
from tests.examples import make_record

ROOT = Path(__file__).parents[1]


class Spot(sf.V2): ...


@caspar.factor
def near(
    spot: Annotated[Spot, caspar.TunableShared], goal: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    return sf.V2(spot[0] - goal[0], spot[0] * spot[1] - goal[1])


ARRAYS: dict[str, Any] = {
    "Spot": np.ones((4, 2)),
    "near": {"spot": np.arange(8) % 4, "goal": np.arange(1.0, 17.0).reshape(8, 2)},
}


class Terminal(io.StringIO):
    """A stream that a line can be drawn over on."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, on which lines appear at once."""
    stream = Terminal()
    # pytest sets that of the interpreter again after the fixtures
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    return stream


def visible(written: str) -> str:
    """What a terminal shows in the end, of one line."""
    shown = ""
    for part in written.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()


def wait_for(stream: io.StringIO, text: str) -> None:
    until = time.monotonic() + 10.0
    while text not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.005)
    assert text in stream.getvalue()


class TestLine:
    def test_phases_are_shown_the_inner_one_and_then_the_outer_again(
        self, terminal: Terminal
    ) -> None:
        with showing(None), phase("setting up"):
            wait_for(terminal, "setting up")
            with phase("ordering"):
                wait_for(terminal, "ordering")
            num_shown = terminal.getvalue().count("setting up")
            while terminal.getvalue().count("setting up") == num_shown:
                time.sleep(0.005)
        assert visible(terminal.getvalue()) == ""

    def test_it_appears_after_a_while(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "FIRST_S", 60.0)
        with showing(None), phase("short"):
            iteration("iteration".format)
        assert terminal.getvalue() == ""

    def test_it_is_gone_after_an_error(self, terminal: Terminal) -> None:
        def work() -> None:
            with phase("compiling"):
                wait_for(terminal, "compiling")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            work()
        assert visible(terminal.getvalue()) == ""

    def test_iterations_are_redrawn_at_times(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        monkeypatch.setattr(progress, "FIRST_S", 1.0)
        monkeypatch.setattr(progress, "REDRAW_S", 0.125)
        with showing(None):
            for number in range(41):
                now += 0.0625
                iteration(f"iteration {number}".format)
        shown = [part.strip() for part in terminal.getvalue().split("\r") if part.strip()]
        assert shown == [f"caspar: iteration {number}" for number in range(15, 41, 2)]

    def test_a_stream_that_fails_ends_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken(Terminal):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        monkeypatch.setattr(progress, "FIRST_S", 0.0)
        closed = Terminal()
        closed.close()
        for stream in (Broken(), closed, None):
            monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream, modules={}))
            with showing(None), phase("compiling"):
                iteration("iteration".format)
            assert caspar.Solver(near, backend="cpu").solve(ARRAYS).status.is_success

    def test_lines_of_several_threads_do_not_mix(self, terminal: Terminal) -> None:
        def work(name: str) -> None:
            with showing(None), phase(name):
                time.sleep(0.1)

        threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        shown = [part.strip() for part in terminal.getvalue().split("\r") if part.strip()]
        changes = sum(one != other for one, other in itertools.pairwise(shown))
        assert shown
        assert changes <= 3
        assert visible(terminal.getvalue()) == ""

    def test_where_it_is_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        assert not progress.has_live_output(stream)
        assert not progress.has_live_output(None)
        assert progress.has_live_output(Terminal())
        kind = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
        monkeypatch.setitem(sys.modules, "IPython", io)
        assert progress.has_live_output(kind())

    def test_a_phase_shows_the_iteration_it_is_at(self, terminal: Terminal) -> None:
        with showing(None), phase("solving"):
            wait_for(terminal, "solving")
            until = time.monotonic() + 10.0
            while "iteration 7" not in terminal.getvalue() and time.monotonic() < until:
                iteration("iteration 7".format)
        assert "iteration 7" in terminal.getvalue()
        assert visible(terminal.getvalue()) == ""

    def test_it_fits_the_terminal(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "_columns", lambda: 40)
        with showing(None):
            iteration(("x" * 100).format)
        assert max(map(len, terminal.getvalue().split("\r"))) == 39

    def test_it_is_out_of_the_way_of_callbacks(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "REDRAW_S", 1e-6)
        solver = caspar.Solver(near, backend="cpu")
        shown: list[str] = []

        def look(record: caspar.IterationRecord) -> None:
            shown.append(visible(terminal.getvalue()))

        solver.solve(ARRAYS, on_iteration=look)
        assert "iteration" in terminal.getvalue()
        assert set(shown) == {""}

    def test_without_a_thread_nothing_is_shown(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start)
        with showing(None), phase("compiling"):
            pass
        assert terminal.getvalue() == ""

    def test_an_interrupt_as_the_thread_starts_leaves_no_line(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, usual = threading.active_count(), threading.Thread.start

        def start(thread: threading.Thread) -> None:
            usual(thread)
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt), phase("compiling"):
            pass
        until = time.monotonic() + 10.0
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.005)
        assert threading.active_count() == before
        assert visible(terminal.getvalue()) == ""

    def test_no_thread_stays_after_the_phases(self, terminal: Terminal) -> None:
        before = threading.active_count()
        with showing(None):
            with phase("compiling"):
                wait_for(terminal, "compiling")
            until = time.monotonic() + 10.0
            while threading.active_count() > before and time.monotonic() < until:
                time.sleep(0.005)
            assert threading.active_count() == before


class TestSolves:
    def test_iterations_are_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = caspar.Solver(near, backend="cpu").solve(ARRAYS, verbose=True)
        printed = capsys.readouterr()
        lines = printed.out.splitlines()
        assert lines[0].startswith("start: cost ")
        assert lines[1:] == [str(record) for record in result.iterations]
        assert printed.err == ""

    @pytest.mark.parametrize("verbose", [None, False])
    def test_else_nothing_is_printed(
        self, verbose: bool | None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        caspar.Solver(near, backend="cpu").solve(ARRAYS, verbose=verbose)
        assert capsys.readouterr() == ("", "")

    def test_false_shows_no_line(self, terminal: Terminal) -> None:
        solver = caspar.Solver(near, backend="cpu")
        terminal.truncate(0)
        solver.solve(ARRAYS, verbose=False)
        assert terminal.getvalue() == ""

    def test_other_values_are_refused(self) -> None:
        with pytest.raises(OptionError, match=r"verbose=2: must be True, False or None"):
            caspar.Solver(near, backend="cpu").solve(ARRAYS, verbose=2)  # type: ignore[arg-type]

    def test_the_logger_has_it_all(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, "caspar"):
            solver = caspar.Solver(near, backend="cpu")
            result = solver.solve(ARRAYS)
        told = [(one.levelno, one.getMessage()) for one in caplog.records]
        assert (logging.DEBUG, "tracing near") in told
        assert any(message.startswith("tracing near: ") for _, message in told)
        assert any("compiling what the cache lacks" in message for _, message in told)
        assert any(message.startswith("setting up: ") for _, message in told)
        assert (logging.DEBUG, str(result.iterations[0])) in told
        end = f"{result.status.name} after {len(result.iterations)} iterations: cost "
        assert told[-1][0] == logging.INFO
        assert told[-1][1].startswith(end)

    def test_a_solve_like_the_last_one_starts_no_thread(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        solver = caspar.Solver(near, backend="cpu")
        solver.solve(ARRAYS)

        def start(thread: threading.Thread) -> None:
            raise AssertionError

        monkeypatch.setattr(threading.Thread, "start", start)
        monkeypatch.setattr(progress, "FIRST_S", 60.0)
        solver.solve(ARRAYS)


def test_a_record_is_a_line() -> None:
    assert str(make_record(3, 12.5)).startswith("iteration   3: cost 12.5000, damping ")
    rejected = str(make_record(3, 12.5, step_accepted=False))
    assert "rejected" in rejected
    assert "\n" not in rejected


PROGRAM = """
import caspar, caspar.progress
caspar.progress.FIRST_S = 0.05
from tests.test_progress import ARRAYS, near
caspar.Solver(near, backend="cpu").solve(ARRAYS)
"""


def test_in_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "CASPAR_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=theirs) as process:
        os.close(theirs)
        end = threading.Timer(120.0, process.kill)
        end.start()
        written = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            written += part
        end.cancel()
    os.close(ours)
    assert process.returncode == 0
    assert re.search(
        r"caspar: compiling what the cache lacks of \d+ kernels \(\d+ s\)", written.decode()
    )
    assert visible(written.decode()) == ""
