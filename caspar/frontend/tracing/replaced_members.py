"""The members of SymEngine's and SymPy's classes that ask a watch, while a function is traced.

`Basic.__eq__`, `__bool__`, `__int__` and others are ours for a while. Threads that
the function starts are refused in the same way. Types of an extension are immutable to Python:
their members are set by clearing the flag that says so (`Members`). Methods with underscores then
reach the slots that C code uses (`int(x)`, `x == 1`).

A comparison takes SymEngine 0.04 microseconds, here 0.12. SymPy's members are replaced from when
the function converts a symbol to SymPy: that takes a millisecond, which other functions do not pay.

Also here: members that ask the watch of their thread, made of those that they replace.
"""

import ctypes
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

import sympy
from symengine.lib import symengine_wrapper as symengine
from symengine.lib.symengine_wrapper import RealDouble
from sympy.core import cache as sympy_cache
from sympy.core._print_helpers import Printable
from sympy.core.assumptions import _assume_defined
from sympy.logic.boolalg import Boolean
from sympy.matrices.repmatrix import RepMatrix

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
    """Watch what starts a thread or gives work to one."""

    def ours(self: Any, *args: Any, **options: Any) -> Any:
        watch = current_watch()
        if watch is not None:
            watch.check_thread(sys._getframe(1))
        return theirs(self, *args, **options)

    return ours


def _no_index(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")


def _whole(number: float) -> int:
    if not number.is_integer():
        _no_index(number)
    return int(number)


def _lacking(name: str) -> Member:
    """A member that fails as if it were not there."""

    def fails(value: Any, *args: Any) -> Any:
        raise TypeError(f"type {type(value).__name__} doesn't define {name} method")

    return _no_index if name == "__index__" else fails


_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE of CPython's `object.h`."""

_NUM_WORDS = 40
"""Words of a type object that are searched; `tp_flags` is the 21st, or one of the next."""


class Members:
    """Members of types, to be installed, by type and name."""

    def __init__(self, ours: Mapping[tuple[type, str], Any]) -> None:
        self._ours = ours
        self._theirs = {(kind, name): vars(kind).get(name) for kind, name in ours}
        kinds = {kind for kind, _ in ours}
        self._flags = {kind: _flags_of(kind) for kind in kinds if kind.__flags__ & _IMMUTABLE}
        self._num_installed = 0
        self._renew_lock()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """A fork may have happened while another thread held it."""
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The members are there while at least one thread needs them."""
        with self._lock:
            self._num_installed += 1
            if self._num_installed == 1:
                self._set(self._ours)
        try:
            yield
        finally:
            with self._lock:
                self._num_installed -= 1
                if self._num_installed == 0:
                    self._set(self._theirs)

    def _set(self, members: Mapping[tuple[type, str], Any]) -> None:
        for (kind, name), member in members.items():
            flags = self._flags.get(kind)
            if flags is not None:
                flags.value &= ~_IMMUTABLE
            try:
                if member is not None:
                    setattr(kind, name, member)
                elif name in vars(kind):
                    delattr(kind, name)
            finally:
                if flags is not None:
                    flags.value |= _IMMUTABLE


def _flags_of(kind: type) -> ctypes.c_ulong:
    """The flags in a type object: where in it they are depends on the build of CPython."""
    size = ctypes.sizeof(ctypes.c_ulong)
    cells = [ctypes.c_ulong.from_address(id(kind) + size * word) for word in range(_NUM_WORDS)]
    (found,) = [cell for cell in cells if cell.value == kind.__flags__]
    return found


_Table = dict[tuple[type, str], Any]
_OF_THREAD = threading.local()


@contextmanager
def installed() -> Iterator[None]:
    """Our members, while at least one thread traces."""
    outer = getattr(_OF_THREAD, "until_end", None)
    with _OF_SYMENGINE.installed(), ExitStack() as until_end:
        _OF_THREAD.until_end = until_end
        try:
            yield
        finally:
            _OF_THREAD.until_end = outer


def _meet_sympy() -> None:
    """Replace SymPy's members, too, from now on."""
    until_end = getattr(_OF_THREAD, "until_end", None)
    if until_end is not None and current_watch() is not None:
        until_end.enter_context(_OF_SYMPY.installed())
        _OF_THREAD.until_end = None


def _symbol_to_sympy(symbol: Any) -> Any:
    _meet_sympy()
    return _TO_SYMPY(symbol)


def _hash(expression: Any) -> Any:
    """Hash as by `question`; SymPy looks into its caches before it converts arguments."""
    watch = current_watch()
    if watch is None:
        return _HASH(expression)
    asker = sys._getframe(1)
    if asker.f_code.co_filename == sympy_cache.__file__:
        _meet_sympy()
    found = watch.hash(expression, asker)
    return _HASH(expression) if found is None else found


_TO_SYMPY = symengine.Symbol._sympy_
_HASH = symengine.Basic.__hash__


def _is_true(value: Any) -> bool:
    """The truth of an expression of SymPy that says nothing of it; matrices may be expressions."""
    return not isinstance(value, sympy.MatrixBase) or len(value) != 0


def _members_of_symengine() -> Members:
    basic = symengine.Basic
    ours: _Table = conversions_of(basic)
    for kind in (basic, symengine.MatrixBase):
        ours[kind, "__eq__"] = equality(kind.__eq__)
        ours[kind, "__ne__"] = inequality(kind.__ne__)
    for kind in (basic, symengine.DenseMatrixBase):
        for name in ("__str__", "__repr__"):
            ours[kind, name] = question(vars(kind)[name], Watch.text)
    for name in ("n", "evalf"):
        ours[basic, name] = evaluation(vars(basic)[name])
    for name in (
        *("is_zero", "is_positive", "is_negative", "is_nonpositive", "is_nonnegative"),
        *("is_real", "is_integer", "is_finite"),
    ):
        ours[basic, name] = sign(basic, name)
    for kind in (symengine.Boolean, symengine.Relational):
        ours[kind, "__bool__"] = question(vars(kind)["__bool__"], Watch.truth)
    return Members(
        {
            **ours,
            (basic, "__hash__"): _hash,
            (basic, "__bool__"): question(lambda value: True, Watch.truth),
            (symengine.Symbol, "_sympy_"): _symbol_to_sympy,
            (threading.Thread, "start"): start(threading.Thread.start),
            (ThreadPoolExecutor, "submit"): start(ThreadPoolExecutor.submit),
        }
    )


def _members_of_sympy() -> Members:
    """Return the members of the classes that answer themselves, in any version of SymPy."""
    ours: _Table = conversions_of(sympy.Expr)
    numbers = (sympy.Float, sympy.Rational, sympy.NumberSymbol)
    for kind in (sympy.Basic, sympy.Expr, *numbers, RepMatrix):
        if "__eq__" in vars(kind):
            ours[kind, "__eq__"] = equality(vars(kind)["__eq__"])
    for kind in (sympy.Basic, sympy.Expr):
        if "__hash__" in vars(kind):
            ours[kind, "__hash__"] = question(vars(kind)["__hash__"], Watch.hash)
    for kind in (Printable, sympy.MatrixBase):
        for name in ("__str__", "__repr__"):
            ours[kind, name] = question(getattr(kind, name), Watch.text)
    for fact in _assume_defined:
        ours[sympy.Basic, f"is_{fact}"] = sign(sympy.Basic, f"is_{fact}")
    return Members(
        {
            **ours,
            (sympy.Expr, "equals"): equality(sympy.Expr.equals),
            (sympy.Expr, "__bool__"): question(_is_true, Watch.truth),
            (Boolean, "__bool__"): question(lambda value: True, Watch.truth),
            (sympy.Rel, "__bool__"): question(sympy.Rel.__bool__, Watch.truth),
        }
    )


_OF_SYMENGINE = _members_of_symengine()
_OF_SYMPY = _members_of_sympy()
