"""Let any step of a writer fail: a line of Python, or a call of the system."""

import io
import os
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from caspar.io import replace

CALLS = ("replace", "link", "rename", "mkdir", "chmod", "chown")
"""Functions of `os` that `failing_call` lets fail, besides those of files."""


class InterruptAt:
    """A trace function that raises `KeyboardInterrupt` before a line, counted from 0."""

    def __init__(self, files: Collection[str], line: int) -> None:
        self._files, self.left = files, line

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "InterruptAt | None":
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self

    def run(self, work: Callable[[], None]) -> str | None:
        """Do the work in a thread of its own; what the interrupt says that ends it, or None.

        An interrupt inside a generator of `contextlib` leaves an exception behind in the state of
        its thread: each later exception of this thread, in any test, would get it as its context.
        """
        ends: list[str | None] = []

        def interrupted() -> None:
            sys.settrace(self)
            try:
                work()
            except KeyboardInterrupt as interrupt:
                sys.settrace(None)
                ends.append(str(interrupt))
            else:
                sys.settrace(None)
                ends.append(None)

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(60.0)
        (end,) = ends
        return end


class FailingCalls:
    """Calls of the system of which one fails, or that one and all of its kind that follow.

    Args:
        number: Which call fails, counted from 0.
        error: What it raises.
        is_done: Whether it does its work before.
        is_lasting: Whether later calls of the same function fail, too.
    """

    def __init__(
        self, number: int, error: BaseException, *, is_done: bool, is_lasting: bool
    ) -> None:
        self.left = number
        self._error, self._is_done, self._is_lasting = error, is_done, is_lasting
        self._broken = ""

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function; it fails if it is its turn."""
        self.left -= 1
        fails = self.left == -1 or (self._is_lasting and self._broken == name)
        if fails:
            self._broken = name
        if fails and not self._is_done:
            raise self._error
        found = function(*arguments, **named)
        if fails:
            if isinstance(found, io.FileIO):
                io.FileIO.close(found)  # nobody else has it, and this counts as no call
            raise self._error
        return found

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace functions of `os` and the files that are written."""
        for name in CALLS:
            monkeypatch.setattr(os, name, partial(self.call, name, getattr(os, name)))
        calls = self

        class File(io.FileIO):
            def write(self, content: Any) -> Any:
                return calls.call("write", super().write, content)

            def close(self) -> None:
                is_open = not self.closed
                super().close()  # a file is closed even if that reports an error
                if is_open:
                    calls.call("close", bool)

        def opened(path: str, mode: str, opener: Any) -> io.BufferedWriter:
            raw = self.call("open", File, path, mode.replace("b", ""), opener=opener)
            return io.BufferedWriter(raw, 64)

        monkeypatch.setattr(replace, "open", opened, raising=False)


def contents(folder: Path) -> dict[str, bytes] | None:
    """Every file of a folder, by its path in it; None: there is no folder."""
    if not folder.exists():
        return None
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
