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

Conversions (`int(x)`, an index, a format) fail on symbols anyhow. Their errors are kept, as the
user's code may catch them and go on with one branch.

Other threads are left alone. A comparison takes SymEngine 0.04 microseconds, here 0.12.
"""

import dis
import math
import os
import sys
import threading
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from numbers import Number
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from symengine.lib.symengine_wrapper import (
    Basic,
    Boolean,
    DenseMatrixBase,
    RealDouble,
    Relational,
)
from symengine.lib.symengine_wrapper import Number as Literal

from caspar.frontend.symbolic.lines import is_library, is_user_code
from caspar.frontend.tracing.advice import CONDITIONS, ConditionError
from caspar.frontend.tracing.members import Members

EQUALITY = "==, !=, in and list.index compare symbols, not numbers: one branch would be lost"
TRUTH = (
    "if, and, or, not, assert, any, all, max, min and sorted ask for the truth of a symbol or of a "
    "comparison of symbols"
)
THREAD = "a thread would decide by symbols without being watched: call the function directly"
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
        refused: The first error of a condition or conversion, also if the user's code caught it.
    """

    def __init__(
        self, own_file: str, arguments: Set[str], number: Callable[[Any], float] | None = None
    ) -> None:
        self.refused: Exception | None = None
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
        """The answer to `str(value)`, also of a matrix; None: SymEngine's, as when tracing."""
        if self._number is None or self._user(frame) is None:
            return None
        if not isinstance(value, DenseMatrixBase):
            return repr(self._number(value)) if self._depends(value) else None
        if not any(map(self._depends, value)):
            return None
        rows = np.array([self._number(one) for one in value]).reshape(value.shape).tolist()
        return "".join(f"{row}\n" for row in rows)

    def converted(
        self,
        value: Any,
        frame: FrameType | None,
        theirs: Callable[[], Any],
        from_number: Callable[[float], Any],
    ) -> Any:
        """The answer to `int(value)` and other conversions to numbers.

        Args:
            value: An expression.
            frame: Who asks.
            theirs: SymEngine's answer, which for a symbol is an error.
            from_number: The answer for a number.
        """
        if self._user(frame) is None or not self._depends(value):
            return theirs()
        if self._number is not None:
            return from_number(self._number(value))
        try:
            return theirs()
        except Exception as error:
            if self.refused is None:
                self.refused = error
            raise

    def hash(self, value: Any, frame: FrameType | None) -> int | None:
        """The answer to `hash(value)`; None: SymEngine's.

        Functions that are called may hash as they like (`functools.cache`, `dict.get`): what they
        make of it is seen where decisions are answered.
        """
        user = self._user(frame)
        if user is not None and isinstance(value, RealDouble):
            return hash(float(value))
        if user is None or not self._depends(value):
            return None
        if self._number is None and not _makes_key(user):
            return None
        return hash(self._decided(KEY, value))

    def check_thread(self, frame: FrameType | None) -> None:
        """Refuse that the user's code starts a thread, or gives work to one."""
        if self._user(frame) is not None:
            self._refuse(THREAD)

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, Basic) or isinstance(value, Literal):
            return False
        return any(str(symbol) in self._arguments for symbol in value.free_symbols)

    def _decided(self, text: str, value: Any) -> Any:
        """The number that answers a decision; what is no expression is its own."""
        if self._number is not None:
            return self._number(value) if isinstance(value, Basic) else value
        return self._refuse(text)

    def _refuse(self, text: str) -> NoReturn:
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
    found = None if watch is None else watch.hash(self, sys._getframe(1))
    return int(_HASH(self)) if found is None else found


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


def _conversion(theirs: Callable[..., Any], from_number: Callable[..., Any]) -> Callable[..., Any]:
    def ours(self: Any, *args: Any, **options: Any) -> Any:
        watch = _watch()
        if watch is None:
            return theirs(self, *args, **options)
        return watch.converted(
            self,
            sys._getframe(1),
            lambda: theirs(self, *args, **options),
            lambda number: from_number(number, *args),
        )

    return ours


def _no_index(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")


def _whole(number: float) -> int:
    """A number as an index."""
    if not number.is_integer():
        _no_index(number)
    return int(number)


def _lacking(name: str) -> Callable[..., Any]:
    def fails(value: Any, *args: Any) -> Any:
        raise TypeError(f"type {type(value).__name__} doesn't define {name} method")

    return fails


def _float(number: float, *args: Any) -> RealDouble:
    return RealDouble(number)


def _start(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def ours(self: Any, *args: Any, **options: Any) -> Any:
        watch = _watch()
        if watch is not None:
            watch.check_thread(sys._getframe(1))
        return theirs(self, *args, **options)

    return ours


_OURS: dict[tuple[type, str], Any] = {
    (Basic, "__eq__"): _eq,
    (Basic, "__ne__"): _ne,
    (Basic, "__hash__"): _hash,
    (Basic, "__str__"): _text(_STR),
    (Basic, "__repr__"): _text(_REPR),
    (DenseMatrixBase, "__str__"): _text(DenseMatrixBase.__str__),
    (DenseMatrixBase, "__repr__"): _text(DenseMatrixBase.__repr__),
    (Basic, "__format__"): _conversion(Basic.__format__, format),
    (Basic, "__int__"): _conversion(Basic.__int__, int),
    (Basic, "__float__"): _conversion(Basic.__float__, float),
    (Basic, "__complex__"): _conversion(Basic.__complex__, complex),
    (Basic, "__index__"): _conversion(_no_index, _whole),
    (Basic, "__round__"): _conversion(_lacking("__round__"), round),
    (Basic, "__trunc__"): _conversion(_lacking("__trunc__"), math.trunc),
    (Basic, "n"): _conversion(Basic.n, _float),
    (Basic, "evalf"): _conversion(Basic.evalf, _float),
    (threading.Thread, "start"): _start(threading.Thread.start),
    (ThreadPoolExecutor, "submit"): _start(ThreadPoolExecutor.submit),
    (Basic, "__bool__"): _truth(lambda _: True),
    (Boolean, "__bool__"): _truth(Boolean.__bool__),
    (Relational, "__bool__"): _truth(Relational.__bool__),
    (Basic, "is_zero"): _sign("is_zero", lambda x: x == 0.0),
    (Basic, "is_positive"): _sign("is_positive", lambda x: x > 0.0),
    (Basic, "is_negative"): _sign("is_negative", lambda x: x < 0.0),
    (Basic, "is_nonpositive"): _sign("is_nonpositive", lambda x: x <= 0.0),
    (Basic, "is_nonnegative"): _sign("is_nonnegative", lambda x: x >= 0.0),
}
_MEMBERS = Members(_OURS)
installed = _MEMBERS.installed
"""Our methods while at least one thread traces."""
