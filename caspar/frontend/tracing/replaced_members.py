"""The members of SymEngine's classes that ask a watch, while a function is traced.

`Basic.__eq__`, `__bool__`, `__int__` and others are ours for a while. Each asks the watch of its
thread for the answer (`conditions`); if there is none, SymEngine answers. Threads that the function
starts are refused in the same way.

A comparison takes SymEngine 0.04 microseconds, here 0.12.
"""

import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from symengine.lib.symengine_wrapper import (
    Basic,
    Boolean,
    DenseMatrixBase,
    RealDouble,
    Relational,
)

from caspar.frontend.tracing.conditions import current_watch
from caspar.frontend.tracing.members import Members

_EQ, _NE, _HASH, _STR, _REPR = (
    *(Basic.__eq__, Basic.__ne__, Basic.__hash__),
    *(Basic.__str__, Basic.__repr__),
)


def _eq(self: Any, other: Any) -> bool:
    if _EQ(self, other):
        return True
    watch = current_watch()
    return False if watch is None else watch.equal(self, other, sys._getframe(1))


def _ne(self: Any, other: Any) -> bool:
    if not _NE(self, other):
        return False
    watch = current_watch()
    return True if watch is None else not watch.equal(self, other, sys._getframe(1))


def _hash(self: Any) -> int:
    watch = current_watch()
    found = None if watch is None else watch.hash(self, sys._getframe(1))
    return int(_HASH(self)) if found is None else found


def _text(theirs: Callable[[Any], str]) -> Callable[[Any], str]:
    def ours(self: Any) -> str:
        watch = current_watch()
        text = None if watch is None else watch.text(self, sys._getframe(1))
        return theirs(self) if text is None else text

    return ours


def _truth(theirs: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def ours(self: Any) -> bool:
        watch = current_watch()
        truth = None if watch is None else watch.truth(self, sys._getframe(1))
        return theirs(self) if truth is None else truth

    return ours


def _sign(name: str, holds: Callable[[float], bool]) -> property:
    theirs = vars(Basic)[name]

    def ours(self: Any) -> Any:
        watch = current_watch()
        number = None if watch is None else watch.sign(self, sys._getframe(1))
        return theirs.__get__(self) if number is None else holds(number)

    return property(ours)


def _conversion(theirs: Callable[..., Any], from_number: Callable[..., Any]) -> Callable[..., Any]:
    def ours(self: Any, *args: Any, **options: Any) -> Any:
        watch = current_watch()
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
        watch = current_watch()
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
