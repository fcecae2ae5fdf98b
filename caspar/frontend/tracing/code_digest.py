"""Digest what determines how a user's function runs: its code and that of its callees.

Input: functions and classes. Output: text for cache keys, and the numbers that stand in the code.
It leaves out what cannot be followed, such as arrays and computed values.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from caspar.frontend.symbolic.lines import is_users_file

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = ("builtins", "caspar", "numpy", "symengine", "symforce", "sympy", "typing")
"""Packages whose types are not looked into."""

MAX_ELEMENTS = 100
"""Elements of a container that are looked at: a user's table may be long, and every process does
this."""

MAX_KEY = 8
"""Numbers of a tuple that may be a key."""

MAX_LITERAL = 1e6
"""Greater numbers are not tried as arguments: what is made of them overflows."""


@dataclass
class UserCode:
    """Code that a function runs: texts that determine it, and what else stands in it.

    `literals` are numbers, each once, in the order of their places; `names` global names,
    attributes and types; `tuples` numbers that stand as a tuple, which may be a key of a
    dictionary.
    """

    parts: list[str] = field(default_factory=list)
    literals: list[float] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    tuples: list[tuple[float, ...]] = field(default_factory=list)


def user_code(function: Callable[..., Any], types: Sequence[type]) -> UserCode:
    """The code of a function, of its arguments' types, and of what they name."""
    code = UserCode()
    seen: dict[int, Any] = {id(function): function}  # kept, so that no other thing has their id
    pending: list[Any] = [*_enter_function(code, function), *types]
    for thing in pending:  # grows meanwhile
        if id(thing) not in seen:
            seen[id(thing)] = thing
            pending += _enter(code, thing)
    return code


def _enter(code: UserCode, thing: Any) -> Iterator[Any]:
    """Add what a thing is; yield what it leads to."""
    if isinstance(thing, _PLAIN):
        _enter_constant(code, thing)
    elif isinstance(thing, tuple):
        _enter_tuple(code, thing)
        yield from thing[:MAX_ELEMENTS]
    elif isinstance(thing, list | set | frozenset | dict):
        yield from _elements(thing)
    elif isinstance(thing, FunctionType):
        if is_users_file(thing.__code__.co_filename):
            yield from _enter_function(code, thing)
    elif isinstance(thing, type):
        if thing.__module__ != "builtins":
            code.names.add(thing.__name__)
        if thing.__module__.partition(".")[0] not in _LIBRARIES:
            yield from vars(thing).values()
            yield from thing.__mro__[1:]
    elif isinstance(thing, property):
        yield thing.fget
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, partial):
        yield from (thing.func, thing.args, tuple(thing.keywords.values()))
    else:
        yield from _attributes(code, thing)


def _attributes(code: UserCode, thing: Any) -> Iterator[Any]:
    held = getattr(thing, "__dict__", {})
    names = {"__wrapped__", "function", *code.names}
    yield from (held[name] for name in sorted(names.intersection(held)))
    # caspar's own objects hold whole namespaces
    if is_dataclass(thing) and type(thing).__module__.partition(".")[0] != "caspar":
        yield tuple(getattr(thing, part.name, None) for part in fields(thing))


def _enter_function(code: UserCode, function: Any) -> Iterator[Any]:
    names: dict[str, None] = {}
    pending = [function.__code__]
    while pending:
        own = pending.pop()
        names |= dict.fromkeys(own.co_names)
        code.names.update(own.co_names)
        code.parts += [own.co_code.hex(), repr(own.co_names), repr(own.co_varnames)]
        for constant in own.co_consts:
            if isinstance(constant, CodeType):
                pending.append(constant)
            else:
                yield constant
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType):
            if is_users_file(getattr(found, "__file__", None) or ""):
                yield from (vars(found).get(attribute) for attribute in names)
        else:
            yield found


def _elements(container: Any) -> Iterator[Any]:
    """Some of them, keys before values, in an order that is the same in every process."""
    if isinstance(container, dict) and "__builtins__" in container:
        return  # the names of a module
    elements = list(container)
    if isinstance(container, set | frozenset):
        elements.sort(key=repr)
    yield from elements[:MAX_ELEMENTS]
    if isinstance(container, dict):
        yield from (container[key] for key in elements[:MAX_ELEMENTS])


def _enter_tuple(code: UserCode, thing: tuple[Any, ...]) -> None:
    """Add a tuple of numbers, or of tuples of them, to those that may be keys."""
    pending, numbers = list(thing[:MAX_ELEMENTS]), []
    while pending:
        first = pending.pop(0)
        if isinstance(first, tuple):
            pending[:0] = first[:MAX_ELEMENTS]
        elif isinstance(first, int | float) and abs(first) < MAX_LITERAL:
            numbers.append(float(first))
        else:
            return
    found = tuple(numbers)
    if 1 < len(found) <= MAX_KEY and found not in code.tuples:
        code.tuples.append(found)


def _enter_constant(code: UserCode, constant: Any) -> None:
    code.parts.append(repr(constant))
    if isinstance(constant, int | float) and not isinstance(constant, bool):
        number = float(constant) if abs(constant) < MAX_LITERAL else 0.0
        if number not in (0.0, 1.0, -1.0, *code.literals):  # these are points anyhow
            code.literals.append(number)
