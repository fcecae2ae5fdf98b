"""A symbolic epsilon while tracing, whatever SymForce was set to.

SymForce's formulas take `epsilon=sf.epsilon()`, which is 0 unless a program sets it before its
first import of SymForce: Lie group logarithms then divide 0 by 0 at the identity. While a factor
is traced, `sf.epsilon()` and the defaults that were bound to 0 stand for a symbol instead; each
kernel replaces it by `value(dtype)`.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

import symforce
import symforce.symbolic as sf

from caspar.ir.dtype import DType

SYMBOL = sf.Symbol("epsilon")
"""Stands for epsilon in traced expressions; also SymForce's own name for it."""

_LOCK = RLock()


def value(dtype: DType) -> float:
    """Ten machine epsilons, SymForce's own choice."""
    return 1.1920929e-6 if dtype is DType.FLOAT32 else 2.220446049250313e-15


@contextmanager
def symbolic_epsilon() -> Iterator[None]:
    """Let SymForce's epsilon be `SYMBOL`; one thread at a time."""
    with _LOCK:
        previous = symforce._epsilon
        functions = _functions_with_epsilon(_symforce_modules())
        saved = [(function, function.__defaults__) for function in functions]
        symforce._epsilon = SYMBOL
        try:
            for function, defaults in saved:
                function.__defaults__ = _with_symbol(function, defaults)
            yield
        finally:
            symforce._epsilon = previous
            for function, defaults in saved:
                function.__defaults__ = defaults


def _with_symbol(function: Callable[..., Any], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    names = _argument_names(function)[-len(defaults) :]
    return tuple(
        SYMBOL if name == "epsilon" and default == 0 else default
        for name, default in zip(names, defaults, strict=True)
    )


def _argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def _symforce_modules() -> tuple[str, ...]:
    """What is loaded of SymForce so far."""
    loaded = list(sys.modules)  # at once: other threads may import meanwhile
    return tuple(sorted(name for name in loaded if name.split(".")[0] == "symforce"))


@cache
def _functions_with_epsilon(modules: tuple[str, ...]) -> tuple[Any, ...]:
    """Functions and methods of these modules whose `epsilon` has a default value."""
    found: dict[int, Any] = {}
    for name in modules:
        for thing in list(vars(sys.modules[name]).values()):
            members = vars(thing).values() if inspect.isclass(thing) else (thing,)
            for member in members:
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and _defaults_epsilon(function):
                    found[id(function)] = function
    return tuple(found.values())


def _defaults_epsilon(function: Callable[..., Any]) -> bool:
    defaults = function.__defaults__
    if defaults is None or function.__module__.split(".")[0] != "symforce":
        return False
    return "epsilon" in _argument_names(function)[-len(defaults) :]
