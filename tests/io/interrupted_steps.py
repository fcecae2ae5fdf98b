"""Let any step of a writer fail: a line of Python, or a call of the system."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
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

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Interrupt what runs in the block."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


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
