"""Conditions on arguments are refused while a function runs on symbols.

SymEngine refuses the truth of `x < 1`, but not that of `x`, and `x == 1` asks whether two
expressions are the same, which Python takes for an answer about numbers: one branch would be lost
without a word. So do `!=`, `in`, `list.index`, `if x`, `and`, `any`, dictionaries with symbols as
keys, and `x.is_zero`. While a function is traced, the members of SymEngine's classes behind all of
these are ours: they look at who asks. SymForce, SymEngine, SymPy and caspar get SymEngine's own
answer; the user's code, and the standard library and NumPy on its behalf, get

* the answer for numbers if both sides are numbers: `sf.S(1.0) == 1` holds;
* the answer of SymEngine if that holds for all numbers: equal expressions are equal numbers;
* else a `ConditionError`, or, where a trace is checked (`on_numbers`), the answer at a point.

Other threads are left alone. A comparison takes SymEngine 0.04 microseconds, here 0.12.
"""

import ctypes
import dis
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from enum import Enum
from numbers import Number
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from symengine.lib.symengine_wrapper import Basic, Boolean, RealDouble, Relational
from symengine.lib.symengine_wrapper import Number as Literal

from caspar.frontend.symbolic.lines import is_library, is_user_code
from caspar.frontend.tracing.advice import CONDITIONS, ConditionError

EQUALITY = "==, !=, in and list.index compare symbols, not numbers: one branch would be lost"
TRUTH = (
    "if, and, or, not, assert, any, all, max, min and sorted ask for the truth of a symbol or of a "
    "comparison of symbols"
)
SIGN = "is_zero, is_positive, ... of a symbol are None, which counts as false"
KEY = (
    "a symbol is a key of a dictionary or an element of a set, but different symbols may be equal "
    "numbers"
)

_NUMPY = f"{Path(str(np.__file__)).parent}{os.sep}"
_ON_BEHALF = (
    *("__eq__", "__ne__", "__contains__", "__hash__", "__str__", "__repr__", "__format__"),
    *("<genexpr>", "<listcomp>"),
)
"""Functions of libraries that ask on behalf of their caller."""


class _Asker(Enum):
    """Whose code a frame runs."""

    USER = "decides"
    CALLER = "asks on behalf of its caller"
    LIBRARY = "compares expressions"


class Watch:
    """One run of the user's function.

    Args:
        own_file: Where the function is: the user's, wherever that is.
        arguments: Names of the arguments' symbols.
        number: What an expression of them is at the point at which decisions are answered; None:
            they are refused.

    Attributes:
        refused: The first condition that was refused, also if the user's code caught the error.
    """

    def __init__(
        self, own_file: str, arguments: Set[str], number: Callable[[Any], float] | None = None
    ) -> None:
        self.refused: ConditionError | None = None
        self._own_file = own_file
        self._arguments = arguments
        self._number = number
        self._askers: dict[tuple[str, str], _Asker] = {}

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that calls the user's."""
        previous = getattr(_OF_THREAD, "watch", None)
        with installed():
            try:
                _OF_THREAD.watch = self
                return function(*args, **kwargs)
            finally:
                _OF_THREAD.watch = previous

    def equal(self, left: Any, right: Any, frame: FrameType | None) -> bool:
        """The answer to `left == right`, which are not the same expression."""
        if not isinstance(right, Basic | Number | np.ndarray) or self._user(frame) is None:
            return False
        if not self._depends(left) and not self._depends(right):
            return _equal_numbers(left, right)
        answer: bool = self._decided(EQUALITY, left) == self._decided(EQUALITY, right)
        return answer

    def truth(self, value: Any, frame: FrameType | None) -> bool | None:
        """The answer to `bool(value)`; None: SymEngine's."""
        if self._user(frame) is None:
            return None
        if isinstance(value, Literal):
            return not _equal_numbers(value, 0.0)
        return bool(self._decided(TRUTH, value)) if self._depends(value) else None

    def sign(self, value: Any, frame: FrameType | None) -> float | None:
        """The number whose `is_zero`, `is_positive`, ... is asked for; None: SymEngine answers."""
        if self._user(frame) is None or not self._depends(value):
            return None
        return float(self._decided(SIGN, value))

    def text(self, value: Any, frame: FrameType | None) -> str | None:
        """The answer to `str(value)`; None: SymEngine's, also while decisions are refused."""
        if self._number is None or self._user(frame) is None or not self._depends(value):
            return None
        return repr(self._number(value))

    def hash(self, value: Any, frame: FrameType | None) -> int:
        """The answer to `hash(value)`.

        Functions that are called may hash as they like (`functools.cache`, `dict.get`): what they
        make of it is seen where decisions are answered.
        """
        user = self._user(frame)
        if user is not None and isinstance(value, RealDouble):
            return hash(float(value))
        if user is None or not self._depends(value):
            return int(_HASH(value))
        if self._number is None and not _makes_key(user):
            return int(_HASH(value))
        return hash(self._decided(KEY, value))

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, Basic) or isinstance(value, Literal):
            return False
        return any(str(symbol) in self._arguments for symbol in value.free_symbols)

    def _decided(self, text: str, value: Any) -> Any:
        """The number that answers a decision; what is no expression is its own."""
        if self._number is not None:
            return self._number(value) if isinstance(value, Basic) else value
        error = ConditionError(f"{text}. The function runs on symbols, not numbers: {CONDITIONS}")
        if self.refused is None:
            self.refused = error
        raise error

    def _user(self, frame: FrameType | None) -> FrameType | None:
        """The frame of the user's code that asks; None: a library does, for itself."""
        asker = _Asker.CALLER
        while frame is not None:
            asker = self._asker(frame)
            if asker is not _Asker.CALLER:
                break
            frame = frame.f_back
        return frame if asker is _Asker.USER and self._is_running(frame) else None

    def _asker(self, frame: FrameType) -> _Asker:
        code = frame.f_code
        key = (code.co_filename, code.co_name)
        known = self._askers.get(key)
        if known is None:
            known = self._askers[key] = self._find_asker(frame, *key)
        return known

    def _find_asker(self, frame: FrameType, file: str, name: str) -> _Asker:
        if file == self._own_file:
            return _Asker.USER
        if is_library(file):
            is_for_caller = file.startswith(_NUMPY) or name in _ON_BEHALF
            return _Asker.CALLER if is_for_caller else _Asker.LIBRARY
        return _Asker.USER if is_user_code(file, frame) else _Asker.CALLER

    def _is_running(self, frame: FrameType | None) -> bool:
        """Whether the run goes on: an interrupt at the wrong moment leaves a watch behind."""
        while frame is not None:
            if frame.f_code is Watch.run.__code__:
                return True
            frame = frame.f_back
        return False


def _equal_numbers(left: Any, right: Any) -> bool:
    """Equality of numbers of which one is a float: SymEngine tells 1.0 from 1."""
    if not isinstance(left, RealDouble | float) and not isinstance(right, RealDouble | float):
        return False
    try:
        return float(left) == float(right)
    except (RuntimeError, TypeError, ValueError, OverflowError):  # complex, infinite
        return False


_MAKING_KEYS = (
    *("BUILD_", "MAP_ADD", "SET_", "DICT_", "BINARY_", "CONTAINS_OP"),
    *("STORE_SUBSCR", "DELETE_SUBSCR"),
)
"""Beginnings of the instructions that hash."""


def _makes_key(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_MAKING_KEYS)


# -- the members of SymEngine's expressions --------------------------------------------------------

_OF_THREAD = threading.local()
_EQ, _NE, _HASH, _STR, _REPR = (
    *(Basic.__eq__, Basic.__ne__, Basic.__hash__),
    *(Basic.__str__, Basic.__repr__),
)


def _watch() -> Watch | None:
    return getattr(_OF_THREAD, "watch", None)


def _eq(self: Any, other: Any) -> bool:
    if _EQ(self, other):
        return True
    watch = _watch()
    return False if watch is None else watch.equal(self, other, sys._getframe(1))


def _ne(self: Any, other: Any) -> bool:
    if not _NE(self, other):
        return False
    watch = _watch()
    return True if watch is None else not watch.equal(self, other, sys._getframe(1))


def _hash(self: Any) -> int:
    watch = _watch()
    return int(_HASH(self)) if watch is None else watch.hash(self, sys._getframe(1))


def _text(theirs: Callable[[Any], str]) -> Callable[[Any], str]:
    def ours(self: Any) -> str:
        watch = _watch()
        text = None if watch is None else watch.text(self, sys._getframe(1))
        return theirs(self) if text is None else text

    return ours


def _truth(theirs: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def ours(self: Any) -> bool:
        watch = _watch()
        truth = None if watch is None else watch.truth(self, sys._getframe(1))
        return theirs(self) if truth is None else truth

    return ours


def _sign(name: str, holds: Callable[[float], bool]) -> property:
    theirs = vars(Basic)[name]

    def ours(self: Any) -> Any:
        watch = _watch()
        number = None if watch is None else watch.sign(self, sys._getframe(1))
        return theirs.__get__(self) if number is None else holds(number)

    return property(ours)


_OURS: dict[tuple[type, str], Any] = {
    (Basic, "__eq__"): _eq,
    (Basic, "__ne__"): _ne,
    (Basic, "__hash__"): _hash,
    (Basic, "__str__"): _text(_STR),
    (Basic, "__repr__"): _text(_REPR),
    (Basic, "__bool__"): _truth(lambda _: True),
    (Boolean, "__bool__"): _truth(Boolean.__bool__),
    (Relational, "__bool__"): _truth(Relational.__bool__),
    (Basic, "is_zero"): _sign("is_zero", lambda x: x == 0.0),
    (Basic, "is_positive"): _sign("is_positive", lambda x: x > 0.0),
    (Basic, "is_negative"): _sign("is_negative", lambda x: x < 0.0),
    (Basic, "is_nonpositive"): _sign("is_nonpositive", lambda x: x <= 0.0),
    (Basic, "is_nonnegative"): _sign("is_nonnegative", lambda x: x >= 0.0),
}
_THEIRS = {(kind, name): vars(kind).get(name) for kind, name in _OURS}

_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE of CPython's `object.h`."""

_NUM_WORDS = 40
"""Of a type object, which has more; `tp_flags` is the 21st, or one of the next."""

_lock = threading.Lock()
_num_installed = 0


def _renew_lock() -> None:
    """A fork may have happened while another thread held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def installed() -> Iterator[None]:
    """Our methods while at least one thread traces."""
    global _num_installed
    with _lock:
        _num_installed += 1
        if _num_installed == 1:
            _set_members(_OURS)
    try:
        yield
    finally:
        with _lock:
            _num_installed -= 1
            if _num_installed == 0:
                _set_members(_THEIRS)


def _flags_of(kind: type) -> ctypes.c_ulong:
    """The flags in a type object: where in it they are depends on the build of CPython."""
    size = ctypes.sizeof(ctypes.c_ulong)
    cells = [ctypes.c_ulong.from_address(id(kind) + size * word) for word in range(_NUM_WORDS)]
    (found,) = [cell for cell in cells if cell.value == kind.__flags__]
    return found


_FLAGS = {kind: _flags_of(kind) for kind, _ in _OURS}


def _set_members(members: Mapping[tuple[type, str], Any]) -> None:
    """Set members of types of an extension, which do not allow it; None: delete one."""
    for (kind, name), member in members.items():
        flags = _FLAGS[kind]
        flags.value &= ~_IMMUTABLE
        try:
            if member is not None:
                setattr(kind, name, member)
            elif name in vars(kind):
                delattr(kind, name)
        finally:
            flags.value |= _IMMUTABLE
