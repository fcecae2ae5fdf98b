"""Find the line of the user's function that each sub-expression comes from.

While a residual function runs on symbols, a trace function (`sys.settrace`) watches the frames of
the user's code: the function itself and what it calls, except what lies in Python's library,
SymForce and the like. After each line it looks at the locals that are new or rebound and attributes
every sub-expression that was not seen before to that line; the innermost of the user's lines wins.

Debuggers and coverage tools use the same hook. If one is active already, nothing is recorded and
no line is known; if a breakpoint starts one in the middle, it takes over and recording ends.

Once for each trace; each sub-expression is walked once: 0.3 ms for the bundle adjustment factor.
"""

import dis
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import symengine
import symforce
import sympy
from symengine.lib.symengine_wrapper import Add, Basic
from symforce.ops import StorageOps

MAX_TEXT = 100
"""Characters of a statement that are kept."""

_NEWEST = 64
"""Elements of a list that are looked at again after a line that may have filled it."""

_MAX_ERRORS = 100

_PLAIN = (type(None), int, float, str, bytes, type)
"""Types of values that hold no expression."""

_ABSENT = object()

_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(__file__).parents[2],
        *(Path(str(package.__file__)).parent for package in (np, symengine, symforce, sympy)),
    )
)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_NAME = re.compile(r"[^\W\d]\w*")

Trace = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Line:
    """A statement of the user's code, in one line, cut at `MAX_TEXT`, and the names in it.

    The text is empty where there is no source.
    """

    function: str
    file: str
    number: int
    text: str
    names: frozenset[str] = field(repr=False)

    @property
    def origin(self) -> str:
        """The origin of calls in a graph: no path or number, which change with other code."""
        return f"{self.function}: {self.text}" if self.text else self.function


@dataclass(frozen=True)
class Lines:
    """The line of each sub-expression, and errors they may have caused, even if caught."""

    of: Mapping[Any, Line] = field(default_factory=dict)
    file: str = ""
    errors: Sequence[Exception] = ()

    def place(self, line: Line | None) -> str:
        """A line as a part of an error that has named the function's file already."""
        if line is None:
            return ""
        number = f"line {line.number}" if line.file == self.file else f"{line.file}:{line.number}"
        return f", {number}: {line.text}" if line.text else f", {number}"


def run_with_lines(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Lines]:
    """Call a function; its result, and the lines of the expressions it makes.

    There are none where another trace function is active.
    """
    file = function.__code__.co_filename
    active = sys.gettrace()
    is_left_over = isinstance(getattr(active, "__self__", None), _Recorder) and not _is_running(
        sys._getframe(1)
    )
    if active is not None and not is_left_over:
        return function(*args, **kwargs), Lines(file=file)
    recorder = _Recorder(file)
    trace = recorder.on_call
    sys.settrace(trace)
    try:
        result = function(*args, **kwargs)
    finally:
        if sys.gettrace() is trace:  # not so after a breakpoint: the debugger stays
            sys.settrace(None)
    return result, Lines(recorder.lines, file, recorder.errors)


def _is_running(frame: FrameType | None) -> bool:
    """Return whether a frame is that of `run_with_lines`, or called by it."""
    while frame is not None and frame.f_code is not run_with_lines.__code__:
        frame = frame.f_back
    return frame is not None


def locals_of(frame: FrameType) -> Mapping[str, Any]:
    """The local variables of a frame; none where Python would crash (python/cpython#128396)."""
    if (3, 13) <= sys.version_info < (3, 13, 3) and _would_crash(frame.f_code):
        return {}
    return frame.f_locals


@lru_cache(1024)
def _would_crash(code: CodeType) -> bool:
    """Return whether a comprehension binds a variable that a function in it uses."""
    return any(
        one.opname == "LOAD_FAST_AND_CLEAR" and one.argval in code.co_cellvars
        for one in dis.get_instructions(code)
    )


def line_at(frame: FrameType, number: int, function: str) -> Line:
    """The statement at a line of the file that a frame runs."""
    file = frame.f_code.co_filename
    text = statement(linecache.getlines(file, frame.f_globals), number)
    names = frozenset(_NAME.findall(text))
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 3] + "..."
    return Line(function, file, number, text, names)


class _Recorder:
    """Lines and errors found so far in a run, each error once for every frame that it passed."""

    def __init__(self, own_file: str) -> None:
        self.lines: dict[Any, Line] = {}
        self.errors: list[Exception] = []
        self._own_file = own_file
        self._is_users: dict[str, bool] = {}
        self._known: dict[tuple[str, str, int], Line] = {}
        self._generators: dict[FrameType, _FrameRecorder] = {}
        self._walked: dict[int, Any] = {}  # by id, which is theirs as long as they are kept

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        """The global trace function: a frame starts, or a generator goes on."""
        if not self._belongs_to_user(frame):
            return None
        if not _is_running(frame):  # an interrupt came before the function was taken away
            sys.settrace(None)
            return None
        if frame in self._generators:
            return self._generators[frame].on_event
        caller = self._nearest_of_user(frame.f_back)
        seen = dict(frame.f_locals)
        if caller is not None:
            line = self.line(caller)
            for value in seen.values():
                self.attribute(value, line)
        made = _FrameRecorder(self, seen)
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._generators[frame] = made
        return made.on_event

    def attribute(self, value: Any, line: Line) -> None:
        """Attribute what was not seen of a value before to this line."""
        if id(value) not in self._walked:
            self._walked[id(value)] = value
            self._attribute_all(_expressions(value, sys.maxsize), line)

    def attribute_newest(self, value: Any, line: Line) -> None:
        """The same of a value that may have been filled since it was walked."""
        self._attribute_all(_expressions(value, _NEWEST), line)

    def _attribute_all(self, expressions: Iterable[Any], line: Line) -> None:
        pending = list(expressions)
        while pending:
            expression = pending.pop()
            if expression not in self.lines:
                self.lines[expression] = line
                pending += expression.args

    def look_at_error(self, frame: FrameType, error: Exception) -> None:
        """Keep an error that a frame with expressions raised because it took them for numbers."""
        if isinstance(error, AttributeError):  # numpy asks for methods; the user's code may, too
            instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            may_be = not instruction.startswith(("LOAD_ATTR", "LOAD_METHOD"))
        else:
            may_be = isinstance(error, TypeError | NotImplementedError)
        if may_be and len(self.errors) < _MAX_ERRORS:
            values = locals_of(frame).values()
            if any(next(_expressions(value, _NEWEST), None) is not None for value in values):
                self.errors.append(error)

    def line(self, frame: FrameType) -> Line:
        number: int | None = frame.f_lineno  # None in code that belongs to no line
        if number is None:
            number = frame.f_code.co_firstlineno
        file = frame.f_code.co_filename
        key = (file, frame.f_code.co_name, number)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = line_at(frame, number, self._function_name(frame))
        return known

    def _function_name(self, frame: FrameType) -> str:
        named: FrameType | None = frame
        while named is not None and named.f_code.co_name.startswith("<"):
            named = self._nearest_of_user(named.f_back)
        return (frame if named is None else named).f_code.co_name.strip("<>")

    def _nearest_of_user(self, frame: FrameType | None) -> FrameType | None:
        """The frame itself or the nearest caller in the user's code, up to the function traced."""
        while frame is not None and frame.f_code is not run_with_lines.__code__:
            if self._belongs_to_user(frame):
                return frame
            frame = frame.f_back
        return None

    def _belongs_to_user(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        known = self._is_users.get(file)
        if known is None:
            known = file == self._own_file or is_user_code(file, frame)
            self._is_users[file] = known
            linecache.checkcache(file)
        return known and frame.f_code.co_name != "<module>"


class _FrameRecorder:
    """The local trace function of one frame.

    A sum that one line replaces by another sum, as loops do, is looked at when another line uses
    it or the frame is left: walking 3,000 growing sums took 2.3 s instead of 0.2 s.
    """

    def __init__(self, recorder: _Recorder, seen: dict[str, Any]) -> None:
        self._recorder = recorder
        self._seen = seen
        self._line: Line | None = None
        self._sums: dict[str, tuple[Any, Line]] = {}

    def on_event(self, frame: FrameType, event: str, arg: Any) -> Trace:
        """A line is about to run, or the frame returns, yields or meets an error."""
        if event == "line":
            if self._line is not None:
                self._look_at_locals(frame, self._line)
            self._line = self._recorder.line(frame)
            self._look_at_sums(self._line)
        elif event == "return" and self._line is not None:
            self._look_at_locals(frame, self._line)
            self._look_at_sums(None)
            self._recorder.attribute(arg, self._line)
        elif event == "exception":
            self._recorder.look_at_error(frame, arg[1])
        return self.on_event

    def _look_at_locals(self, frame: FrameType, line: Line) -> None:
        seen = self._seen
        binds = False
        for name, value in locals_of(frame).items():
            previous = seen.get(name, _ABSENT)
            if previous is not value:
                seen[name] = value
                binds = True
                is_sum = isinstance(value, Add) and isinstance(previous, Add)
                if is_sum and line.text and name not in frame.f_code.co_cellvars:
                    self._sums[name] = (value, line)
                else:
                    self._sums.pop(name, None)
                    self._recorder.attribute(value, line)
        if not binds:  # it may have filled a list or a matrix instead
            for name, value in seen.items():
                if not line.text or name in line.names:
                    self._recorder.attribute_newest(value, line)

    def _look_at_sums(self, user: Line | None) -> None:
        """Attribute the sums that a line uses and did not make itself; None: all of them."""
        for name, (value, line) in list(self._sums.items()):
            if user is None or (name in user.names and line is not user):
                del self._sums[name]
                self._recorder.attribute(value, line)


def is_library(file: str) -> bool:
    """Return whether a file belongs to caspar or to what it makes expressions with."""
    return file.startswith(_LIBRARIES)


def is_users_file(file: str) -> bool:
    """Return whether a file is the user's, or belongs to a library that the user calls."""
    if is_library(file):
        return False
    return not file.startswith(_STANDARD_LIBRARY) or _INSTALLED.search(file) is not None


def is_user_code(file: str, frame: FrameType) -> bool:
    """Return whether a frame runs code of such a file; generated methods have none."""
    if file.startswith("<"):  # notebooks have a source
        return not file.startswith("<frozen") and bool(linecache.getlines(file, frame.f_globals))
    return is_users_file(file)


def _expressions(value: Any, newest: int) -> Iterator[Any]:
    """The expressions a value holds; of lists only the newest elements."""
    pending = [value]
    opened: set[int] = set()
    while pending:
        part = pending.pop()
        if isinstance(part, Basic):
            yield part
        elif not isinstance(part, _PLAIN) and id(part) not in opened:  # a list may hold itself
            opened.add(id(part))
            pending += _parts(part, newest)


def _parts(value: Any, newest: int) -> Sequence[Any]:
    """Return the parts of a container, a dataclass or a SymForce type; nothing of other things."""
    if isinstance(value, list | tuple):
        return value[-newest:]
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())[-newest:]
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else ()
    if is_dataclass(value):
        return [getattr(value, part.name, None) for part in fields(value)]
    try:
        return list(StorageOps.to_storage(value))
    except Exception:  # not a storage type, or one of the user's that fails
        return ()


_STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#.*""")
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def statement(lines: Sequence[str], number: int) -> str:
    """The statement that starts at a line, from 1, or its head, in one line without comments.

    In the middle of a statement, the rest of it is taken.
    """
    text = ""
    depth = 0
    for line in lines[number - 1 :]:
        code = _STRING_OR_COMMENT.sub(_without_comment, line).strip()
        depth += sum(_DEPTH.get(character, 0) for character in _STRING_OR_COMMENT.sub("", code))
        is_tight = text.endswith(("(", "[", "{")) or code.startswith((")", "]", "}"))
        text += ("" if is_tight else " ") + code.removesuffix("\\").rstrip()
        if depth <= 0 and not code.endswith("\\"):
            break
    return text.strip()


def _without_comment(match: re.Match[str]) -> str:
    return "" if match[0].startswith("#") else match[0]
