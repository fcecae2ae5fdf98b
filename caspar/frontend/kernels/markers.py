"""The markers of a kernel's arguments and outputs: one access pattern each.

Input: an annotation. Output: the declared type and an instance of the access, with its default
value converted; and the text that stands for an access in keys.

Also here: the outputs of a kernel function: what its annotation declares, what it returned.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from caspar.errors import KernelError, UnsupportedFunctionError
from caspar.frontend.kernels.values import MisfitError, described, storage_of, type_name
from caspar.frontend.markers import Marker, Pair, Table
from caspar.frontend.symbolic.lines import Lines
from caspar.frontend.tracing.signature import (
    NO_STORAGE_TYPE,
    Role,
    UserFunction,
    check_is_number,
    evaluated,
    marker_name,
    markers_in,
    matrix_shape,
    return_annotation,
    symbolic_value,
)
from caspar.memory import patterns
from caspar.memory.access import Accessor, ReadAccessor, WriteAccessor
from caspar.memory.patterns import ReadIndexed, ReadStridedWithDefault, ReadUnique

_BASES = (Accessor, ReadAccessor, WriteAccessor)
_DIRECTION: dict[Role, Any] = {Role.ARGUMENT: ReadAccessor, Role.OUTPUT: WriteAccessor}


@dataclass(frozen=True)
class Marked:
    """A type, of a pair that of a half, its size, an object of symbols, and its access."""

    declared: type
    storage_dim: int
    symbolic: Any
    access: Any

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix with several columns; () of everything else."""
        return matrix_shape(self.symbolic)


def marked(function: UserFunction, role: Role, name: str, annotation: Any) -> Marked:
    """Take the annotation of an argument or output apart.

    Raises a `KernelError` if there is no such marker, more than one, or not for this; or no such
    type.
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
    also the source of their class: who changes it in a notebook gets a new kernel. Raises a
    `KernelError` if the source is not to be had.
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


ResultType = type[tuple[Any, ...]] | None
"""The class that outputs are returned in: `tuple` or a NamedTuple; None: a single one as it is."""


def declared_outputs(function: UserFunction) -> tuple[dict[str, Any], ResultType]:
    """The annotation of each output by its name, and what the function returns them in."""
    annotation = return_annotation(function)
    where = f"{function.title} ({function.location})"
    how = (
        "write -> Annotated[Type, Marker], of several outputs -> tuple[Annotated[Type, Marker], "
        "Annotated[Type, Marker]] with one for each, or a NamedTuple class of such fields"
    )
    if annotation is None:
        raise KernelError(f"{where}: the annotation of what it returns is missing; {how}")
    declared: dict[str, Any]
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        hints = _hints(function, annotation)
        declared = {name: hints.get(name) for name in getattr(annotation, "_fields", ())}
        result_type = annotation
    elif get_origin(annotation) is tuple:
        declared = {
            f"out{number}": evaluated(function, f"output out{number}", part)
            for number, part in enumerate(get_args(annotation))
        }
        result_type = tuple
    else:
        return {"out": annotation}, None
    if len(declared) == 0 or Ellipsis in declared.values():
        raise KernelError(f"{where}: returns {annotation}, which does not name its outputs; {how}")
    return declared, result_type


def _hints(function: UserFunction, fields: type) -> dict[str, Any]:
    try:
        return get_type_hints(fields, localns=dict(function.local_names), include_extras=True)
    except Exception as error:  # the annotations are the user's code
        raise KernelError(
            f"{function.title} ({function.location}): the annotations of {fields.__name__} cannot "
            f"be evaluated where the kernel was defined: {error}"
        ) from error


def returned_rows(
    function: UserFunction,
    outputs: Mapping[str, Marked],
    result_type: ResultType,
    result: Any,
    lines: Lines,
    known: frozenset[str],
) -> list[tuple[Any, ...]]:
    """The scalars of every output; of a pair those of the first half, then of the second.

    `known` are the symbols that may appear. Raises a `KernelError` if it is not what is declared,
    an `UnsupportedFunctionError` for what is no number or holds an unknown symbol.
    """
    rows = declared_rows(function, outputs, result_type, result)
    for name, found in zip(outputs, rows, strict=True):
        for row in found:
            check_is_number(function, f"the output {name}", row, lines)
            unknown = sorted({str(symbol) for symbol in row.free_symbols} - known)
            if len(unknown) > 0:
                raise UnsupportedFunctionError(
                    f"{function.title} ({function.location}), output {name}: contains the free "
                    f"symbol {unknown[0]!r}; only arguments of the function may appear in it"
                )
    return rows


def declared_rows(
    function: UserFunction, outputs: Mapping[str, Marked], result_type: ResultType, result: Any
) -> list[tuple[Any, ...]]:
    """The same, whatever the scalars are; `KernelError` if it is not what is declared."""
    values = [result]
    if result_type is not None:
        values = _elements(function, list(outputs), result_type, result)
    return [
        _rows(f"{function.title} ({function.location}), output {name}", output, value)
        for (name, output), value in zip(outputs.items(), values, strict=True)
    ]


def _elements(
    function: UserFunction, names: Sequence[str], result_type: type, result: Any
) -> list[Any]:
    expected = getattr(result_type, "_fields", None)
    if isinstance(result, list | tuple) and len(result) == len(names):
        fields = getattr(result, "_fields", None)
        if None in (fields, expected) or fields == expected:
            return list(result)
    raise KernelError(
        f"{function.title} ({function.location}): returned {described(result)}; its annotation "
        f"declares {len(names)} outputs, so it must return a {result_type.__name__} of "
        f"{', '.join(names)}{_hint(result)}"
    )


def _rows(where: str, output: Marked, value: Any) -> tuple[Any, ...]:
    if not output.access.is_pair:
        halves = [value]
    elif isinstance(value, list | tuple) and len(value) == 2:
        halves = list(value)
    else:
        raise KernelError(
            f"{where}: returned {described(value)}; {output.access.name} needs two values of type "
            f"{type_name(output.declared)}: return caspar.Pair((first, second)){_hint(value)}"
        )
    try:
        return tuple(row for half in halves for row in storage_of(output.declared, half))
    except MisfitError as error:
        raise KernelError(f"{where}: {error}{_hint(value)}") from error


def _hint(value: Any) -> str:
    return "; is the return statement missing?" if value is None else ""
