"""Values that a kernel function is given or gives back: which are symbolic, which fit a type."""

import dataclasses
import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
import symforce.symbolic as sf
import sympy
from symengine.lib.symengine_wrapper import Basic
from symforce.ops import StorageOps
from symforce.ops.interfaces import Storage


class _Kind(Enum):
    """Kinds of types, by what makes their values symbolic."""

    SYMBOLIC = "an expression, or a SymForce type"
    SEQUENCE = "symbolic if an element is"
    FIELDS = "symbolic if a field is"
    OTHER = "an array, a number, a mapping or whatever else"


_ARRAY_NAMES = ("__array_interface__", "__cuda_array_interface__", "__dlpack__", "__array__")


def is_symbolic(value: Any) -> bool:
    """Return whether a value is, or holds, something that a symbolic function works on.

    So are expressions, SymForce's types (also of numbers, such as `sf.V3(1, 2, 3)`), and lists,
    tuples, pairs and dataclasses that hold one; not so are arrays, numbers, mappings and None. Of
    arrays only the type is looked at: less than a microsecond.
    """
    python_type: type = type(value)
    kind = _kind(python_type)
    if kind is _Kind.SEQUENCE:
        return any(is_symbolic(element) for element in value)
    if kind is _Kind.FIELDS:
        return any(
            is_symbolic(getattr(value, part.name, None)) for part in dataclasses.fields(value)
        )
    return kind is _Kind.SYMBOLIC


@cache
def _kind(python_type: type) -> _Kind:
    if issubclass(python_type, Basic | sympy.Basic | Storage):
        return _Kind.SYMBOLIC
    if any(hasattr(python_type, name) for name in _ARRAY_NAMES):
        return _Kind.OTHER
    if issubclass(python_type, list | tuple):
        return _Kind.SEQUENCE
    if dataclasses.is_dataclass(python_type):
        return _Kind.FIELDS
    if issubclass(python_type, int | float | Mapping | type(None)):
        return _Kind.OTHER
    try:
        StorageOps.implementation(python_type)
    except NotImplementedError:
        return _Kind.OTHER
    return _Kind.SYMBOLIC  # a type that the user has registered


def is_scalar_type(declared: Any) -> bool:
    """Return whether a declared type means one number: `sf.Symbol`, `sf.Scalar`, `float`, ..."""
    return isinstance(declared, type) and issubclass(declared, int | float | np.number | sf.Expr)


def type_name(declared: Any) -> str:
    """Name of a type; of SymForce's matrices the short one, such as V3 or M23."""
    name = str(getattr(declared, "__name__", declared))
    size = re.fullmatch(r"Matrix(\d)(\d)", name)
    if size is None or declared.__module__ != sf.Matrix.__module__:
        return name
    num_rows, num_columns = size.groups()
    return f"V{num_rows}" if num_columns == "1" else f"M{num_rows}{num_columns}"


class MisfitError(Exception):
    """A value is not one of a declared type; says what it is and what it should be."""


def storage_of(declared: Any, value: Any) -> list[Any]:
    """The storage of a value, as SymEngine expressions, or a `MisfitError`.

    Of a scalar type that is one expression or number. Of a vector it may be a list or tuple of its
    scalars, of other types only the type itself, what it derives from in SymForce, or what derives
    from it.
    """
    entries = _entries(declared, value)
    dim = StorageOps.storage_dim(declared)
    if entries is None:
        raise MisfitError(f"needs {_wanted(declared, dim)}, got {described(value)}")
    if len(entries) != dim:
        raise MisfitError(
            f"needs {_with_article(declared)} ({_scalars(dim)}), got {described(value)}"
        )
    expressions = []
    for number, entry in enumerate(entries):
        expression = _expression(entry)
        if expression is None:
            raise MisfitError(
                f"got {described(value)}, whose scalar {number} is {described(entry)}; scalars are "
                "SymForce expressions or numbers"
            )
        expressions.append(expression)
    return expressions


def value_of(declared: Any, value: Any) -> Any:
    """A value as one of a declared type: a list or tuple of scalars becomes a vector."""
    scalars = storage_of(declared, value)
    is_list = isinstance(value, list | tuple)
    return StorageOps.from_storage(declared, scalars) if is_list else value


def described(value: Any) -> str:
    """A value in an error."""
    if value is None:
        return "None"
    name, one = type_name(type(value)), _with_article(type(value))
    if isinstance(value, np.ndarray):
        return f"{one} of shape {tuple(value.shape)}"
    if isinstance(value, sf.Matrix):
        return f"{one} {_shape(tuple(value.shape))}"
    if isinstance(value, list | tuple):
        return f"{one} of {len(value)} element{'s' if len(value) != 1 else ''}"
    if isinstance(value, Basic | sympy.Basic) and len(value.args) > 0:
        return f"an expression of type {name}"  # its text may be of any length
    if _expression(value) is not None:
        return f"{name} {value}"
    python_type: type = type(value)
    if _kind(python_type) in (_Kind.SYMBOLIC, _Kind.FIELDS):
        return f"{one}{_stored(value)}"
    return one


def _stored(value: Any) -> str:
    try:
        return f" ({_scalars(len(StorageOps.to_storage(value)))})"
    except (AttributeError, NotImplementedError, TypeError):  # a dataclass of something else
        return ""


def _with_article(python_type: Any) -> str:
    name = type_name(python_type)
    begins_with_vowel = re.match(r"[aeioAEIO]|M\d|nd", name) is not None
    return f"{'an' if begins_with_vowel else 'a'} {name}"


def _scalars(number: int) -> str:
    return f"{number} scalar{'s' if number != 1 else ''}"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({_scalars(shape[0])})" if shape[1] == 1 else f"of shape {shape}"


def _entries(declared: Any, value: Any) -> list[Any] | None:
    """The scalars of a value, unchecked; None: it does not fit."""
    if is_scalar_type(declared):
        return [value] if _expression(value) is not None else None
    if issubclass(declared, sf.Matrix):
        if isinstance(value, list | tuple) and 1 in declared.SHAPE:
            return list(value)
        if not isinstance(value, sf.Matrix) or value.shape != declared.SHAPE:
            return None
    elif not isinstance(value, _family(declared)):
        return None
    return list(StorageOps.to_storage(value))


def _family(declared: type) -> type:
    """The type of SymForce that a type derives from, or else itself.

    What arithmetic returns is often the base of the type that was declared.
    """
    for base in declared.__mro__:
        module = base.__module__
        if module.startswith("symforce.") and not module.startswith("symforce.ops."):
            return base
    return declared


def _wanted(declared: Any, dim: int) -> str:
    if is_scalar_type(declared):
        return "a SymForce expression or a number"
    one = _with_article(declared)
    if issubclass(declared, sf.Matrix):
        also = f", or a list of {_scalars(dim)}" if 1 in declared.SHAPE else ""
        return f"{one} {_shape(declared.SHAPE)}{also}"
    family = _family(declared)
    also = f" or {_with_article(family)}" if family is not declared else ""
    return f"{one}{also} ({_scalars(dim)})"


def _expression(value: Any) -> Any:
    """A number or expression as SymEngine has it, else None."""
    if isinstance(value, sf.DataBuffer):
        return None
    if isinstance(value, np.number):
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    return sf.sympify(value) if isinstance(value, int | float | sf.Expr | sympy.Expr) else None
