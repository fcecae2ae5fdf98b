"""Conditions on arguments are refused while a function runs on symbols.

SymEngine refuses the truth of `x < 1`, but not that of `x`, and `x == 1` asks whether two
expressions are the same, which Python takes for an answer about numbers: one branch would be lost
without a word. So do `!=`, `in`, `list.index`, `if x`, `and`, `any`, dictionaries with symbols as
keys, and `x.is_zero`. While a function is traced, the members of SymEngine's classes behind all of
these are ours, and those of SymPy's, once the function converts a symbol (`replaced_members`): they
look at who asks (`Askers`). SymForce, SymEngine, SymPy and caspar get the library's own answer; the
user's code, and the standard library and NumPy on its behalf, get

* the answer for numbers if both sides are numbers: `sf.S(1.0) == 1` holds;
* the library's answer if that holds for all numbers: equal expressions are equal numbers;
* else a `ConditionError`, or, where a trace is checked (`on_numbers`), the answer at a point.

Conversions (`int(x)`, an index, a format) fail on symbols anyhow. Their errors are kept, as the
user's code may catch them and go on with one branch.

Other threads are left alone.
"""

import dis
import os
import threading
from collections.abc import Callable, Set
from enum import Enum
from numbers import Number
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import numpy as np
import sympy
from symengine.lib.symengine_wrapper import Basic, MatrixBase, RealDouble, sympify
from symengine.lib.symengine_wrapper import Number as Literal

from caspar.frontend.symbolic.lines import is_library, is_user_code
from caspar.frontend.tracing.advice import CONDITIONS, ConditionError

_NUMPY = f"{Path(str(np.__file__)).parent}{os.sep}"
_ON_BEHALF = (
    *("__eq__", "__ne__", "__contains__", "__hash__", "__str__", "__repr__", "__format__"),
    *("<genexpr>", "<listcomp>"),
)
"""Functions of libraries that ask on behalf of their caller."""


class _Asker(Enum):
    """The author of the code that a frame runs."""

    USER = "decides"
    CALLER = "asks on behalf of its caller"
    LIBRARY = "compares expressions"


class Askers:
    """The askers of one run of the user's function, which is in `own_file`."""

    def __init__(self, own_file: str) -> None:
        self._own_file = own_file
        self._known: dict[tuple[str, str], _Asker] = {}

    def user(self, frame: FrameType | None) -> FrameType | None:
        """The frame of the user's code that asks; None: a library does, for itself."""
        asker = _Asker.CALLER
        while frame is not None:
            asker = self._asker(frame)
            if asker is not _Asker.CALLER:
                break
            frame = frame.f_back
        return frame if asker is _Asker.USER else None

    def _asker(self, frame: FrameType) -> _Asker:
        code = frame.f_code
        key = (code.co_filename, code.co_name)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find_asker(frame, *key)
        return known

    def _find_asker(self, frame: FrameType, file: str, name: str) -> _Asker:
        if file == self._own_file:
            return _Asker.USER
        if is_library(file):
            is_for_caller = file.startswith(_NUMPY) or name in _ON_BEHALF
            return _Asker.CALLER if is_for_caller else _Asker.LIBRARY
        return _Asker.USER if is_user_code(file, frame) else _Asker.CALLER


_MAKING_KEYS = (
    *("BUILD_", "MAP_ADD", "SET_", "DICT_", "BINARY_", "CONTAINS_OP"),
    *("STORE_SUBSCR", "DELETE_SUBSCR"),
)
"""Beginnings of the instructions that hash."""


def makes_key(frame: FrameType) -> bool:
    """Return whether a frame makes or looks up a key itself, not in a function that it calls."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_MAKING_KEYS)


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


_MATRICES = (MatrixBase, sympy.MatrixBase)
_EXPRESSIONS = (Basic, sympy.Basic, *_MATRICES)
_COMPARED = (*_EXPRESSIONS, Number, np.ndarray)
"""Types of what is compared as numbers."""


class Watch:
    """One run of the user's function, which is in `own_file`.

    `number` is what an expression of the arguments is at the point at which decisions are answered;
    None: they are refused. `refused` is the first error of a condition or conversion, also if the
    user's code caught it. `hashed` are expressions that were hashed at a point, each with the place
    in the user's code: one after the other they are a key, or several.
    """

    def __init__(
        self, own_file: str, arguments: Set[str], number: Callable[[Any], float] | None = None
    ) -> None:
        self.refused: Exception | None = None
        self.hashed: list[tuple[tuple[CodeType, int], Any]] = []
        self._askers = Askers(own_file)
        self._arguments = arguments
        self._number = number

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that calls the user's, while the members that ask are installed."""
        previous = getattr(_OF_THREAD, "watch", None)
        try:
            _OF_THREAD.watch = self
            return function(*args, **kwargs)
        finally:
            _OF_THREAD.watch = previous

    def equal(self, left: Any, right: Any, frame: FrameType | None) -> bool | None:
        """The answer to `left == right`, which are not the same expression; None: the library's.

        Either side may be an expression or a matrix of them.
        """
        if not isinstance(right, _COMPARED) or self._user(frame) is None:
            return None
        if not self._depends(left) and not self._depends(right):
            return _equal_numbers(left, right) if isinstance(left, Basic) else None
        answer: bool = self._decided(EQUALITY, left) == self._decided(EQUALITY, right)
        return answer

    def truth(self, value: Any, frame: FrameType | None) -> bool | None:
        """The answer to `bool(value)`; None: the library's."""
        if self._user(frame) is None:
            return None
        if isinstance(value, Literal):
            return not _equal_numbers(value, 0.0)
        return bool(self._decided(TRUTH, value)) if self._depends(value) else None

    def sign(self, value: Any, frame: FrameType | None) -> float | None:
        """The number whose `is_zero`, ... is asked for; None: the library answers."""
        if self._user(frame) is None or not self._depends(value):
            return None
        return float(self._decided(SIGN, value))

    def text(self, value: Any, frame: FrameType | None) -> str | None:
        """The answer to `str(value)`, also of a matrix; None: the library's, as when tracing."""
        if self._number is None or self._user(frame) is None:
            return None
        if not self._depends(value):
            return None
        if not isinstance(value, _MATRICES):
            return repr(self._at_point(value))
        rows = np.array([self._at_point(one) for one in value]).reshape(value.shape).tolist()
        return "".join(f"{row}\n" for row in rows)

    def converted(
        self,
        value: Any,
        frame: FrameType | None,
        theirs: Callable[[], Any],
        from_number: Callable[[float], Any],
    ) -> Any:
        """The answer to `int(value)` and other conversions to numbers.

        `theirs` is the library's, which for a symbol is an error.
        """
        if self._user(frame) is None or not self._depends(value):
            return theirs()
        if self._number is not None:
            return from_number(self._at_point(value))
        try:
            return theirs()
        except Exception as error:
            if self.refused is None:
                self.refused = error
            raise

    def hash(self, value: Any, frame: FrameType | None) -> int | None:
        """The answer to `hash(value)`; None: the library's.

        Functions that are called may hash as they like (`functools.cache`, `dict.get`): what they
        make of it is seen where decisions are answered.
        """
        user = self._user(frame)
        if user is not None and isinstance(value, RealDouble):
            return hash(float(value))
        if user is None or not self._depends(value):
            return None
        if self._number is None and not makes_key(user):
            return None
        self.hashed.append(((user.f_code, user.f_lasti), sympify(value)))
        return hash(self._decided(KEY, value))

    def check_thread(self, frame: FrameType | None) -> None:
        """Refuse that the user's code starts a thread, or gives work to one."""
        if self._user(frame) is not None:
            self._refuse(THREAD)

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, _EXPRESSIONS) or isinstance(value, Literal):
            return False
        return any(str(symbol) in self._arguments for symbol in value.free_symbols)

    def _decided(self, text: str, value: Any) -> Any:
        """The number that answers a decision; what is no expression is its own."""
        if self._number is not None:
            return self._at_point(value) if isinstance(value, _EXPRESSIONS) else value
        return self._refuse(text)

    def _at_point(self, value: Any) -> float:
        assert self._number is not None
        return self._number(sympify(value))

    def _refuse(self, text: str) -> NoReturn:
        error = ConditionError(f"{text}. The function runs on symbols, not numbers: {CONDITIONS}")
        if self.refused is None:
            self.refused = error
        raise error

    def _user(self, frame: FrameType | None) -> FrameType | None:
        """The frame of the user's code that asks; None: a library does, for itself."""
        user = self._askers.user(frame)
        return user if self._is_running(user) else None

    def _is_running(self, frame: FrameType | None) -> bool:
        """Return whether the run goes on: an interrupt may have left the watch behind."""
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


_OF_THREAD = threading.local()


def current_watch() -> Watch | None:
    """The run that goes on in this thread."""
    return getattr(_OF_THREAD, "watch", None)
