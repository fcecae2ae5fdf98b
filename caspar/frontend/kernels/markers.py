"""The markers of a kernel's arguments and outputs: one access pattern each.

Input: an annotation. Output: the declared type and an instance of the access, with its default
value converted; and the text that stands for an access in keys.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

import numpy as np

from caspar.errors import KernelError
from caspar.frontend.kernels.values import MisfitError, described, storage_of, type_name
from caspar.frontend.markers import Marker, Pair, Table
from caspar.frontend.tracing.signature import (
    NO_STORAGE_TYPE,
    Role,
    UserFunction,
    marker_name,
    markers_in,
    matrix_shape,
    symbolic_value,
)
from caspar.memory import patterns
from caspar.memory.access import Accessor, ReadAccessor, WriteAccessor
from caspar.memory.patterns import ReadIndexed, ReadStridedWithDefault, ReadUnique

_BASES = (Accessor, ReadAccessor, WriteAccessor)
_DIRECTION: dict[Role, Any] = {Role.ARGUMENT: ReadAccessor, Role.OUTPUT: WriteAccessor}


@dataclass(frozen=True)
class Marked:
    """A type and its access.

    Attributes:
        declared: The type of an object; of a pair, of one half.
        storage_dim: Scalars of an object.
        symbolic: An object of symbols.
        access: How it is read or written; `access.is_pair` says whether it is a pair.
    """

    declared: type
    storage_dim: int
    symbolic: Any
    access: Any

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix with several columns; () of everything else."""
        return matrix_shape(self.symbolic)


def marked(function: UserFunction, role: Role, name: str, annotation: Any) -> Marked:
    """Take an annotation apart.

    Args:
        function: The kernel function.
        role: What the annotation is of.
        name: Which one.
        annotation: `Annotated[Type, Marker]`.

    Raises:
        KernelError: No such marker, or more than one, or not for this; no such type.
    """
    where = f"{function.title}, {role.value} {name}"
    access = _access(where, annotation, role)
    declared = get_args(annotation)[0]
    is_pair = declared is Pair or get_origin(declared) is Pair
    if access.is_pair and get_origin(declared) is not Pair:
        raise KernelError(f"{where}: {access.name} needs caspar.Pair[Type], got {declared!r}")
    if is_pair and not access.is_pair:
        raise KernelError(
            f"{where}: caspar.Pair needs a marker of pairs, got {access.name}; allowed are "
            f"{_allowed(role, is_pair=True)}"
        )
    if is_pair:
        declared = get_args(declared)[0]
    if not isinstance(declared, type):
        raise KernelError(f"{where}: {declared!r} {NO_STORAGE_TYPE}")
    is_table = issubclass(declared, Table)
    if is_table and type(access) not in (ReadUnique, ReadIndexed):
        raise KernelError(
            f"{where}: {declared.__name__} is a type of tables, which are arguments with "
            f"ReadUnique (one table) or ReadIndexed (each item names its table), not {access.name}"
        )
    if issubclass(declared, Table) and declared.refuses:
        raise KernelError(
            f"{where}: {declared.__name__} has border='refuse', which leaves instances of factors "
            "out; a kernel has none: use 'clamp' or 'zero'"
        )
    symbolic, storage_dim = symbolic_value(function, declared, name, role, name)
    access = _with_default(where, declared, access, storage_dim)
    return Marked(declared, storage_dim, symbolic, access)


def _access(where: str, annotation: Any, role: Role) -> Any:
    allowed = _allowed(role)
    if get_origin(annotation) is not Annotated:
        raise KernelError(
            f"{where}: has no marker; write Annotated[Type, Marker] with one of {allowed}"
        )
    of_factors = markers_in(annotation, Marker)
    if len(of_factors) > 0:
        raise KernelError(
            f"{where}: {marker_name(of_factors[0])} is for factors (caspar.factor); a kernel "
            f"takes one of {allowed}"
        )
    found = markers_in(annotation, Accessor)
    if len(found) != 1 or found[0] in _BASES:
        names = ", ".join(map(marker_name, found)) or "none"
        raise KernelError(f"{where}: needs exactly one marker of {allowed}; found {names}")
    access = _instance(where, found[0])
    if not isinstance(access, _DIRECTION[role]):
        does = "reads" if isinstance(access, ReadAccessor) else "writes"
        needed = "read" if role is Role.ARGUMENT else "written"
        raise KernelError(
            f"{where}: {access.name} {does}, but {role.value}s are {needed}; use one of {allowed}"
        )
    if not _is_for_users(type(access)):
        raise KernelError(
            f"{where}: {access.name} is only for caspar's own kernels, as it needs memory of "
            f"their own; use one of {allowed}"
        )
    return access


def _instance(where: str, marker: Any) -> Accessor:
    name = marker_name(marker)
    parameters = getattr(marker, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise KernelError(
            f"{where}: {name} is not a frozen dataclass, so caspar cannot tell one {name} from "
            "another; write @dataclass(frozen=True) above the class"
        )
    if not isinstance(marker, type):
        assert isinstance(marker, Accessor)
        return marker
    try:
        made = marker()
    except TypeError as error:
        raise KernelError(f"{where}: {name} cannot be made without arguments: {error}") from error
    assert isinstance(made, Accessor)
    return made


def _is_for_users(access: type[Accessor]) -> bool:
    """Return whether its array is one that users have: of objects, and blocked.

    Partial sums are not, unless the access takes another one for them, which brings their memory;
    rows are what blocked arrays are converted from and to.
    """
    sums = issubclass(access, WriteAccessor) and access.in_kernel is not WriteAccessor.in_kernel
    return not access.needs_rows and (sums or not access.holds_partials)


def _allowed(role: Role, *, is_pair: bool = False) -> str:
    """Names of the patterns that fit."""
    named = [(name, getattr(patterns, name)) for name in patterns.__all__]
    return ", ".join(
        name
        for name, access in named
        if issubclass(access, _DIRECTION[role])
        and _is_for_users(access)
        and (access.is_pair or not is_pair)
    )


def _with_default(where: str, declared: Any, access: Any, storage_dim: int) -> Any:
    """The access with its default value, if it takes one, as the scalars of an object."""
    if not isinstance(access, ReadStridedWithDefault):
        return access
    default: Any = access.default
    how = (
        f"write {access.name}(value) with a value of type {type_name(declared)}, or with a list of "
        f"{storage_dim} numbers in the order of its storage"
    )
    if isinstance(default, tuple) and len(default) == 0:
        raise KernelError(f"{where}: {access.name} has no default value; {how}")
    if isinstance(default, np.ndarray) and default.ndim == 1:
        default = default.tolist()
    if not isinstance(default, list | tuple):
        try:
            default = storage_of(declared, default)
        except MisfitError as error:
            raise KernelError(f"{where}: the default does not fit: {error}; {how}") from error
    if len(default) != storage_dim:
        raise KernelError(f"{where}: the default is {described(default)}; {how}")
    try:
        return replace(access, default=tuple(float(scalar) for scalar in default))
    except (TypeError, ValueError, RuntimeError) as error:
        raise KernelError(f"{where}: the default is not made of numbers: {error}; {how}") from error


def access_key(where: str, access: Accessor) -> str:
    """Text that determines what an access generates.

    Of those that come with caspar the `repr`: their code is part of every key already. Of others
    also the source of their class: who changes it in a notebook gets a new kernel.

    Raises:
        KernelError: The source is not to be had.
    """
    texts = [repr(access)]
    for base in type(access).__mro__:
        if base.__module__.split(".")[0] in ("caspar", "abc", "builtins"):
            continue
        for name, member in sorted(vars(base).items()):
            function = getattr(member, "fget", getattr(member, "__func__", member))
            is_special = name.startswith("__") and name != "__post_init__"
            if inspect.isfunction(function) and not is_special:
                texts.append(_source(f"{where}: {access.name}.{name}", function))
            elif isinstance(member, str | int | float | tuple) and not is_special:
                texts.append(f"{name} = {member!r}")
    return " | ".join(texts)


def _source(what: str, function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise KernelError(
            f"{what}: its source cannot be read ({error}), so kernels that use it could not be "
            "told apart; write the class in a file or in a cell of a notebook"
        ) from error
