"""Members that ask the watch of their thread, made of those that they replace.

Each takes the library's own member and returns ours. Ours gives the watch's answer (`conditions`),
or, if the watch has none, the library's. The frame that asks is that of the caller.
"""

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import sympy
from symengine.lib.symengine_wrapper import RealDouble

from caspar.frontend.tracing.conditions import Watch, current_watch

Member = Callable[..., Any]


def equality(theirs: Member) -> Member:
    """`==`, and `equals` of SymPy, which takes more arguments."""

    def ours(self: Any, other: Any, *args: Any, **options: Any) -> Any:
        found = theirs(self, other, *args, **options)
        watch = current_watch()
        if found is True or watch is None:
            return found
        equal = watch.equal(self, other, sys._getframe(1))
        return found if equal is None else equal

    return ours


def inequality(theirs: Member) -> Member:
    """`!=`."""

    def ours(self: Any, other: Any) -> Any:
        found = theirs(self, other)
        watch = current_watch()
        if found is False or watch is None:
            return found
        equal = watch.equal(self, other, sys._getframe(1))
        return found if equal is None else not equal

    return ours


def question(theirs: Member, answer: Callable[[Watch, Any, FrameType], Any]) -> Member:
    """`hash`, `str` and `bool`, by the method of the watch that answers."""

    def ours(self: Any) -> Any:
        watch = current_watch()
        found = None if watch is None else answer(watch, self, sys._getframe(1))
        return theirs(self) if found is None else found

    return ours


def sign(kind: type, name: str) -> property:
    """`is_zero` and other properties of a class; that of a number is SymPy's."""
    theirs = vars(kind)[name]

    def ours(self: Any) -> Any:
        found = theirs.__get__(self)
        watch = current_watch()
        if found is True or watch is None:
            return found
        number = watch.sign(self, sys._getframe(1))
        return found if number is None else getattr(_exact(number), name)

    return property(ours)


def _exact(number: float) -> Any:
    return sympy.Integer(int(number)) if number.is_integer() else sympy.Float(number)


def conversion(theirs: Member, from_number: Member) -> Member:
    """`int`, `float`, an index, a format."""

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


def conversions_of(kind: type) -> dict[tuple[type, str], Any]:
    """All conversions that expressions of a class may be asked for."""
    from_numbers: dict[str, Member] = {
        "__format__": format,
        "__int__": int,
        "__float__": float,
        "__complex__": complex,
        "__index__": _whole,
        "__round__": round,
        "__trunc__": math.trunc,
    }
    return {
        (kind, name): conversion(getattr(kind, name, None) or _lacking(name), from_number)
        for name, from_number in from_numbers.items()
    }


def evaluation(theirs: Member) -> Member:
    """`n` and `evalf` of SymEngine, which fail on symbols."""
    return conversion(theirs, lambda number, *args: RealDouble(number))


def start(theirs: Member) -> Member:
    """What starts a thread or gives work to one."""

    def ours(self: Any, *args: Any, **options: Any) -> Any:
        watch = current_watch()
        if watch is not None:
            watch.check_thread(sys._getframe(1))
        return theirs(self, *args, **options)

    return ours


def _no_index(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")


def _whole(number: float) -> int:
    """A number as an index."""
    if not number.is_integer():
        _no_index(number)
    return int(number)


def _lacking(name: str) -> Member:
    """A member that fails as if it were not there."""

    def fails(value: Any, *args: Any) -> Any:
        raise TypeError(f"type {type(value).__name__} doesn't define {name} method")

    return _no_index if name == "__index__" else fails
