"""Conditions on arguments are refused while a function runs on symbols.

SymEngine refuses the truth of `x < 1`, but not that of `x`, and `x == 1` asks whether two
expressions are the same, which Python takes for an answer about numbers: one branch would be lost
without a word. So do `!=`, `in`, `list.index`, `if x`, `and`, `any` and dictionaries with symbols
as keys, and `x.is_zero`. While a function is traced, the members of SymEngine's base class behind
all of these are ours: they look at who asks. SymForce, SymEngine, SymPy and caspar get SymEngine's
own answer; the user's code, and the standard library and NumPy on its behalf, get

* the answer for numbers where both sides are numbers: `sf.S(1.0) == 1` holds;
* the answer of SymEngine where that holds for all numbers: equal expressions are equal numbers;
* `ConditionError` where it depends on an argument.

Other threads are left alone. A comparison by SymEngine costs 0.04 microseconds, here 0.12.
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
from symengine.lib.symengine_wrapper import Basic, RealDouble
from symengine.lib.symengine_wrapper import Number as Literal

from caspar.frontend.advice import CONDITIONS, ConditionError
from caspar.frontend.lines import is_library, is_user_code

EQUALITY = "==, !=, in and list.index compare symbols, not numbers: one branch would be lost"
TRUTH = "if, and, or, not, assert, any and all ask for the truth of a symbol"
SIGN = "is_zero, is_positive, ... of a symbol are None, which counts as false"
KEY = (
    "a symbol is a key of a dictionary or an element of a set, but different symbols may be equal "
    "numbers"
)

_NUMPY = f"{Path(str(np.__file__)).parent}{os.sep}"
_COMPARISONS = ("__eq__", "__ne__", "__contains__", "__hash__", "<genexpr>", "<listcomp>")
"""Functions of libraries that compare on behalf of their caller."""


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

    Attributes:
        refused: The first condition that was refused, also if the user's code caught the error.
    """

    def __init__(self, own_file: str, arguments: Set[str]) -> None:
        self.refused: ConditionError | None = None
        self._own_file = own_file
        self._arguments = arguments
        self._askers: dict[tuple[str, str], _Asker] = {}

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that calls the user's."""
        previous = getattr(_OF_THREAD, "watch", None)
        with _installed():
            try:
                _OF_THREAD.watch = self
                return function(*args, **kwargs)
            finally:
                _OF_THREAD.watch = previous

    def equal(self, left: Any, right: Any, frame: FrameType | None) -> bool:
        """The answer to `left == right`, which are not the same expression."""
        if not isinstance(right, Basic | Number | np.ndarray) or self._user(frame) is None:
            return False
        if self._depends(left) or self._depends(right):
            self._refuse(EQUALITY)
        return _equal_numbers(left, right)

    def truth(self, value: Any, frame: FrameType | None) -> bool:
        """The answer to `bool(value)`."""
        if self._user(frame) is None:
            return True
        if self._depends(value):
            self._refuse(TRUTH)
        return not (isinstance(value, Literal) and _equal_numbers(value, 0.0))

    def sign(self, value: Any, frame: FrameType | None) -> None:
        """Somebody asks for `is_zero`, `is_positive`, ..."""
        if self._user(frame) is not None and self._depends(value):
            self._refuse(SIGN)

    def hash(self, value: Any, frame: FrameType | None) -> int:
        """The answer to `hash(value)`.

        Called functions may hash as they like, for example those of `functools.cache`.
        """
        user = self._user(frame)
        if user is None:
            return int(_HASH(value))
        if isinstance(value, RealDouble):
            return hash(float(value))
        if not _is_calling(user) and self._depends(value):
            self._refuse(KEY)
        return int(_HASH(value))

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, Basic) or isinstance(value, Literal):
            return False
        return any(str(symbol) in self._arguments for symbol in value.free_symbols)

    def _refuse(self, text: str) -> None:
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
            is_for_caller = file.startswith(_NUMPY) or name in _COMPARISONS
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


def _is_calling(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("CALL", "PRECALL"))


# -- the methods of SymEngine's expressions --------------------------------------------------------

_EQ, _NE, _HASH = Basic.__eq__, Basic.__ne__, Basic.__hash__
_SIGNS = ("is_zero", "is_positive", "is_negative", "is_nonpositive", "is_nonnegative")
_OF_THREAD = threading.local()


def _eq(self: Any, other: Any) -> Any:
    if _EQ(self, other):
        return True
    watch = getattr(_OF_THREAD, "watch", None)
    return False if watch is None else watch.equal(self, other, sys._getframe(1))


def _ne(self: Any, other: Any) -> Any:
    if not _NE(self, other):
        return False
    watch = getattr(_OF_THREAD, "watch", None)
    return True if watch is None else not watch.equal(self, other, sys._getframe(1))


def _hash(self: Any) -> int:
    watch = getattr(_OF_THREAD, "watch", None)
    return int(_HASH(self) if watch is None else watch.hash(self, sys._getframe(1)))


def _bool(self: Any) -> bool:
    watch = getattr(_OF_THREAD, "watch", None)
    return True if watch is None else bool(watch.truth(self, sys._getframe(1)))


def _sign(name: str) -> property:
    theirs = vars(Basic)[name]

    def ours(self: Any) -> Any:
        watch = getattr(_OF_THREAD, "watch", None)
        if watch is not None:
            watch.sign(self, sys._getframe(1))
        return theirs.__get__(self)

    return property(ours)


_OURS: dict[str, Any] = {"__eq__": _eq, "__ne__": _ne, "__hash__": _hash, "__bool__": _bool}
_OURS |= {name: _sign(name) for name in _SIGNS}
_THEIRS = {name: vars(Basic).get(name) for name in _OURS}

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
def _installed() -> Iterator[None]:
    """Our methods while at least one thread traces."""
    global _num_installed
    with _lock:
        _num_installed += 1
        if _num_installed == 1:
            _set_methods(_OURS)
    try:
        yield
    finally:
        with _lock:
            _num_installed -= 1
            if _num_installed == 0:
                _set_methods(_THEIRS)


def _set_methods(methods: Mapping[str, Any]) -> None:
    """Set members of `Basic`, an extension's type that does not allow it; None: delete one."""
    flags = _flags_of_type()
    flags.value &= ~_IMMUTABLE
    try:
        for name, method in methods.items():
            if method is not None:
                setattr(Basic, name, method)
            elif name in vars(Basic):
                delattr(Basic, name)
    finally:
        flags.value |= _IMMUTABLE


def _flags_of_type() -> ctypes.c_ulong:
    """The flags in `Basic`'s type object: where in it they are depends on the build of CPython."""
    size = ctypes.sizeof(ctypes.c_ulong)
    cells = [ctypes.c_ulong.from_address(id(Basic) + size * word) for word in range(_NUM_WORDS)]
    (found,) = [cell for cell in cells if cell.value == Basic.__flags__]
    return found
