"""Everything that a function of the user may read while it is traced.

Input: a function and its annotations. Output: a `Reading`. As long as two readings of a function
are the same, it gives the same expressions, and need not be traced again. A reading covers code,
globals, closures, defaults, attributes of modules, classes, containers, arrays and objects, and
that SymForce is as it was. A function that may read anything else has none: files, times, random
numbers, objects of extension types, attributes whose names are computed.

Cost tier: once for each factor of a solver; a tenth of tracing it.
"""

import builtins
import dis
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, get_args, get_origin

import numpy as np
import symforce.symbolic as sf
import sympy
from symengine.lib.symengine_wrapper import Basic
from symforce.ops.ops import Ops

from caspar.frontend.markers import Marker
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.lines import is_users_file
from caspar.frontend.tracing.signature import UserFunction

MAX_THINGS = 5_000
"""A function that reads more is traced each time: that may be quicker."""

MAX_ARRAY_BYTES = 1 << 16

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONSTANT = (
    Basic,
    sympy.Basic,
    np.ufunc,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    inspect.Signature,
)
"""Types of objects that never change."""

_SYMBOLIC = frozenset({"symengine", "symforce", "sympy"})
_STANDARD = frozenset(
    (
        *("abc", "collections", "dataclasses", "enum", "functools", "itertools", "math"),
        *("reprlib", "typing"),
    )
)
"""Modules of Python whose functions depend on their arguments alone."""

_BUILTINS = (
    *("abs", "all", "any", "chr", "divmod", "format", "isinstance", "issubclass", "iter", "len"),
    *("max", "min", "next", "ord", "pow", "repr", "round", "sorted", "sum", "__build_class__"),
)
"""Functions of Python that do the same. Its types do."""

_NUMPY = (
    *("arange", "array", "asarray", "cross", "diag", "dot", "eye", "full", "linspace", "norm"),
    *("ones", "outer", "zeros"),
)
"""Functions of NumPy that do the same. Its ufuncs do."""

_REFUSED = ("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
"""Instructions of functions that have no reading."""


@dataclass(frozen=True)
class Reading:
    """Numbers and texts that a function may read, and objects compared by identity, as code."""

    texts: tuple[str, ...]
    things: tuple[object, ...]

    def is_same(self, other: "Reading") -> bool:
        """Return whether everything is as it was."""
        return (
            self.texts == other.texts
            and len(self.things) == len(other.things)
            and all(map(operator.is_, self.things, other.things))
        )


def reading_of(function: Callable[..., Any], annotations: Mapping[str, Any]) -> Reading | None:
    """Return what a function may read now; None: that cannot be told."""
    walk = _Walk()
    try:
        walk.follow(function, dict(annotations))
    except _UnknownError:
        return None
    return Reading(tuple(walk.texts), (*walk.things, *_members_of_symforce()))


class _UnknownError(Exception):
    """Something that cannot be followed."""


@dataclass
class _Walk:
    """The objects found so far: texts and things as in `Reading`, numbered by their ids.

    `held` keeps them, so that no other has their id; `attributes` are names that are read of
    `modules`, in the order in which they were found.
    """

    texts: list[str] = field(default_factory=list)
    things: list[object] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    held: list[object] = field(default_factory=list)
    modules: list[ModuleType] = field(default_factory=list)
    attributes: dict[str, bool] = field(default_factory=dict)

    def follow(self, *things: Any) -> None:
        pending = list(things)
        looked_up: set[tuple[int, str]] = set()
        while len(pending) > 0:
            for thing in pending:  # grows meanwhile
                pending += self._enter(thing)
            pending = []
            for module in self.modules:
                for name in self.attributes:
                    if (id(module), name) not in looked_up:
                        looked_up.add((id(module), name))
                        pending += _attribute(module, name)

    def _enter(self, thing: Any) -> Iterator[Any]:
        """Add what a thing is; yield what it leads to."""
        kind = type(thing)
        if kind in _PLAIN:
            self.texts.append(repr(thing))
            return
        number = self.seen.setdefault(id(thing), len(self.seen))
        if number < len(self.held):
            self.texts.append(f"thing {number}")
            return
        if number > MAX_THINGS:
            raise _UnknownError
        self.held.append(thing)
        self.texts.append(kind.__name__)
        yield from self._enter_new(thing)

    def _enter_new(self, thing: Any) -> Iterator[Any]:
        kind = type(thing)
        if isinstance(thing, FunctionType):
            yield from self._enter_function(thing)
        elif isinstance(thing, type) and not _is_of_library(thing):
            yield from self._enter_class(thing)
        elif isinstance(thing, ModuleType):
            self._enter_module(thing)
        elif _is_constant(thing):
            self.things.append(thing)
        elif get_origin(thing) is not None:
            yield from (get_origin(thing), *get_args(thing))
        elif kind in _PARTS:
            yield from _PARTS[kind](thing)
        elif isinstance(thing, UserFunction):
            yield thing.function
        elif isinstance(thing, tuple | list | set | frozenset):
            yield from self._enter_elements(thing)
        elif isinstance(thing, np.ndarray | np.generic):
            self._enter_numbers(thing)
        else:
            yield from self._enter_object(thing)

    def _enter_function(self, function: FunctionType) -> Iterator[Any]:
        file, module = function.__code__.co_filename, function.__globals__.get("__name__", "")
        if is_users_file(file) or file.startswith(_CASPAR):
            names = _names(function.__code__)
            if names is None:
                raise _UnknownError
            self.things.append(function.__code__)
            self.attributes.update(names)
            for name, is_global in names.items():
                if is_global:
                    yield function.__globals__.get(name, vars(builtins).get(name, ...))
        else:
            if not _is_allowed(module, function.__name__):
                raise _UnknownError
            self.things.append(function)  # SymForce's get other code, see `epsilon`
            if module.partition(".")[0] not in _STANDARD:
                return
        # also decorators of Python's library hold functions of the user
        yield from (function.__defaults__, function.__kwdefaults__, function.__dict__)
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                self.texts.append("not filled")

    def _enter_class(self, kind: type) -> Iterator[Any]:
        if type(kind).__module__ not in ("builtins", "abc", "enum"):
            yield type(kind)
        yield from kind.__mro__[1:]
        yield dict(vars(kind))

    def _enter_module(self, module: ModuleType) -> None:
        root = module.__name__.partition(".")[0]
        file = getattr(module, "__file__", None)
        is_users = file is not None and is_users_file(file) and not hasattr(module, "__getattr__")
        is_known = root in ("caspar", "numpy", *_SYMBOLIC, *_STANDARD)
        if not (is_users or is_known) or "random" in module.__name__:
            raise _UnknownError
        self.modules.append(module)

    def _enter_elements(self, container: Any) -> Iterator[Any]:
        self.texts.append(str(len(container)))
        if type(container) not in (tuple, list, set, frozenset):
            yield type(container)
            yield from self._attributes(container, tuple)
        yield from container

    def _enter_numbers(self, thing: Any) -> None:
        is_small = thing.nbytes <= MAX_ARRAY_BYTES and thing.dtype.kind in "biufc"
        if not is_small or type(thing).__module__.partition(".")[0] != "numpy":
            raise _UnknownError
        self.texts.append(f"{thing.dtype.str} {thing.shape} {thing.tobytes().hex()}")

    def _enter_object(self, thing: Any) -> Iterator[Any]:
        yield type(thing)
        own = ""
        if isinstance(thing, sf.Matrix):
            self.texts.append(f"{thing.shape} {expression_key(thing.to_flat_list())}")
            own = "mat"
        yield from self._attributes(thing, object, own)

    def _attributes(self, thing: Any, base: type, own: str = "") -> Iterator[Any]:
        """The attributes but one of an object that has nothing else, but what `base` has."""
        for kind in type(thing).__mro__:
            if kind not in (base, object) and not _is_plain_class(kind):
                raise _UnknownError
        try:
            held = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            if base is object:  # of an extension type
                raise _UnknownError from None
            return
        yield {name: value for name, value in held.items() if name != own}


_PARTS: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    dict: lambda thing: (tuple(thing), *thing.values()),
    property: lambda thing: (thing.fget, thing.fset, thing.fdel),
    staticmethod: lambda thing: (thing.__func__,),
    classmethod: lambda thing: (thing.__func__,),
    cached_property: lambda thing: (thing.func,),
    range: lambda thing: (thing.start, thing.stop, thing.step),
    partial: lambda thing: (thing.func, thing.args, thing.keywords),
    MethodType: lambda thing: (thing.__func__, thing.__self__),
}
"""The parts of objects of Python's own types."""


def _attribute(module: ModuleType, name: str) -> tuple[Any, ...]:
    found = vars(module).get(name, _attribute)
    return () if found is _attribute else (name, found)


_CASPAR = __file__.partition("frontend")[0]
"""Factors of caspar's own are followed as those of the user are."""


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> Mapping[str, bool] | None:
    """Names that code reads, and whether they are global; None: it may read what has no name."""
    names: dict[str, bool] = {}
    pending = [code]
    for one in pending:  # grows meanwhile
        pending += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
        names |= {name: names.get(name, False) for name in one.co_names}
        for instruction in dis.get_instructions(one):
            if instruction.opname in _REFUSED:
                return None
            if "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
                names[instruction.argval] = True
    return None if any("random" in name for name in names) else names


def _is_constant(thing: Any) -> bool:
    """Return whether the identity of a thing determines what it does."""
    if isinstance(thing, type):
        return _is_of_library(thing)
    if isinstance(thing, _CONSTANT):
        return True
    root = type(thing).__module__.partition(".")[0]
    if thing is ... or thing is NotImplemented or root == "_abc":
        return True
    if root in ("typing", "dataclasses"):
        return get_origin(thing) is None
    is_function = root in ("builtins", "numpy") or "cython" in root
    return is_function and callable(thing) and _is_constant_function(thing)


def _is_constant_function(thing: Any) -> bool:
    """Return whether a function of an extension depends on its arguments alone."""
    owner = getattr(thing, "__self__", None)
    if isinstance(thing, types.BuiltinFunctionType) and isinstance(owner, type):
        return _is_of_library(owner)
    if isinstance(thing, types.BuiltinFunctionType) and not isinstance(owner, ModuleType):
        return False
    return _is_allowed(getattr(thing, "__module__", None) or "", getattr(thing, "__name__", ""))


def _is_allowed(module: str, name: str) -> bool:
    root = module.partition(".")[0]
    if root in ("builtins", "numpy"):
        return name in (_BUILTINS if root == "builtins" else _NUMPY)
    return root in _SYMBOLIC or root in _STANDARD


def _is_of_library(kind: type) -> bool:
    """Return whether a class is of a library, so that it is as it was."""
    root = kind.__module__.partition(".")[0]
    if root == "numpy":
        return issubclass(kind, np.generic) or kind is np.ndarray
    return root in ("builtins", "caspar", "types", *_SYMBOLIC, *_STANDARD)


def _is_plain_class(kind: type) -> bool:
    """Return whether objects of a class have their attributes in a dictionary, and nothing else."""
    if len(vars(kind).get("__slots__", ())) > 0:
        return False
    if issubclass(kind, Marker) or kind.__module__ in ("typing", "abc", "enum", "__main__"):
        return True
    if kind.__module__.partition(".")[0] == "symforce":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return file.endswith(".py") and (is_users_file(file) or file.startswith(_CASPAR))


def _members_of_symforce() -> Iterator[object]:
    """SymForce's functions and methods, which a program may replace."""
    public = list(vars(sf).values())
    kinds = [kind for kind in public if isinstance(kind, type)]
    for kind, (concept, operations) in Ops.IMPLEMENTATIONS.copy().items():
        kinds += [kind, concept, operations]
    yield from public
    for kind in dict.fromkeys(kinds):
        yield kind
        if kind.__module__.startswith("symforce"):
            yield from list(vars(kind).values())
